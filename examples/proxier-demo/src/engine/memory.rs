//! Uses one heap, and returns unused memory to the kernel.

/// Makes all threads share one heap, whose large blocks return to the kernel when freed. Call it before other threads
/// start.
///
/// By default glibc gives each thread its own heap, and other threads cannot reuse what it frees. Here one thread reads
/// objects and another stores them.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(nix::libc::M_ARENA_MAX, 1), (nix::libc::M_MMAP_THRESHOLD, 64 << 10)] {
        // SAFETY: mallopt(3) takes two numbers and changes how memory is allocated from here on.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _was_taken = unsafe { nix::libc::mallopt(parameter, value) };
    }
}

/// Returns memory that the allocator keeps for later to the kernel. Takes a few milliseconds.
///
/// The initial list of a cluster takes several times the memory needed afterwards, and glibc by itself only returns the
/// end of the heap.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes a number, may be called by any thread at any time, and moves nothing that is in
        // use.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _given_any = unsafe { nix::libc::malloc_trim(0) };
    }
}
