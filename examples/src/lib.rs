//! Shared code.
