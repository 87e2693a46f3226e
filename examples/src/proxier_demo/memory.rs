//! Memory: one heap, and back with what is not needed any more.

/// Lets all threads share one heap, whose large pieces go back to the kernel when they are free. To be called before there
/// are other threads.
///
/// glibc gives each thread a heap of its own, and what one of them has freed the others cannot use: objects are read by one
/// thread here and kept by another.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [(nix::libc::M_ARENA_MAX, 1), (nix::libc::M_MMAP_THRESHOLD, 64 << 10)] {
        // SAFETY: mallopt(3) takes two numbers and changes how memory is got from here on.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _was_taken = unsafe { nix::libc::mallopt(parameter, value) };
    }
}

/// Gives back to the kernel what the allocator keeps for later. Costs a few milliseconds.
///
/// The initial list of a cluster takes several times the memory that is needed afterwards, and by itself glibc gives back
/// only what lies at the end of the heap.
pub(super) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes a number, may be called by any thread at any time, and moves nothing that is in use.
        #[expect(unsafe_code, reason = "glibc's own function, which nobody wraps")]
        let _given_any = unsafe { nix::libc::malloc_trim(0) };
    }
}
