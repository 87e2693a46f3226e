//! Uses few heaps, and returns unused memory to the kernel.

use std::ops::Range;

/// Sets how many heaps the threads share. Their large blocks return to the kernel when freed. Call it before threads
/// start.
///
/// By default glibc gives each thread its own, and other threads cannot reuse what it frees. With one heap the thread
/// that reads objects and the one that stores them wait for each other: a start in nftables mode with 50,000 Services
/// takes 2.1 s instead of 1.5. In iptables mode four heaps take 7 MB more.
#[cfg_attr(not(target_env = "gnu"), expect(unused_variables, reason = "other allocators have no such setting"))]
pub fn share_heaps(heaps: i32) {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(nix::libc::M_ARENA_MAX, heaps), (nix::libc::M_MMAP_THRESHOLD, 64 << 10)] {
        // SAFETY: mallopt(3) takes two numbers and changes how memory is allocated from here on.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _was_taken = unsafe { nix::libc::mallopt(parameter, value) };
    }
}

/// Returns memory that the allocator keeps for later, and pages of code, to the kernel. Takes a few milliseconds.
///
/// The initial list of a cluster takes several times the memory needed afterwards, and glibc by itself only returns the
/// end of the heap. Likewise, a start maps nearly all of the program, and what comes afterwards needs a fifth of it. Code
/// that is used again comes from the page cache, and the kernel drops the rest first when memory runs short.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes a number, may be called by any thread at any time, and moves nothing that is in
        // use.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _given_any = unsafe { nix::libc::malloc_trim(0) };
    }
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    for range in mappings.lines().filter_map(code) {
        // First: what is unmapped while marked as used counts as used again.
        for advice in [nix::libc::MADV_COLD, nix::libc::MADV_DONTNEED] {
            let start = std::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: madvise(2) with these leaves the mapping in place. Its pages hold what the file holds, since nothing
            // may write to them, and are read from there again.
            #[expect(unsafe_code, reason = "the standard library does not know what is mapped")]
            let _is_taken = unsafe { nix::libc::madvise(start, range.len(), advice) };
        }
    }
}

/// Addresses of a line of `/proc/PID/maps` (`fs/proc/task_mmu.c`, `show_map_vma`) if it is code from a file.
fn code(line: &str) -> Option<Range<usize>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let is_code = words.next()? == "r-xp" && words.nth(2)? != "0";
    let address = |text| usize::from_str_radix(text, 16).ok();
    is_code.then_some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::{code, give_back};

    #[test]
    fn only_what_cannot_be_written_and_comes_from_a_file_is_code() {
        let range = |line| code(line).map(|range| (range.start, range.end));
        assert_eq!(range("55d0-55e0 r-xp 002b2000 fe:00 1234    /usr/bin/proxier-demo"), Some((0x55d0, 0x55e0)));
        for other in [
            "55d0-55e0 r--p 002b2000 fe:00 1234    /usr/bin/proxier-demo",
            "55d0-55e0 rwxp 002b2000 fe:00 1234    /usr/bin/proxier-demo",
            "7ffd-7ffe r-xp 00000000 00:00 0       [vdso]",
            "55d0-55e0",
            "",
        ] {
            assert_eq!(range(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_runs_on_without_the_pages_of_its_code() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        // Reading it maps all of it.
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        for range in std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter_map(code) {
            memory.read_exact_at(&mut vec![0; range.len()], range.start as u64).unwrap();
        }
        let before = resident();
        give_back();
        let after = resident();
        assert!(after < before / 2, "{before} KiB, then {after}");
    }
}
