//! The generic-netlink interface of the Linux IP Virtual Server (linux/ip_vs.h) as Rust: no I/O, no policy, no unsafe
