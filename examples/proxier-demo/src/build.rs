//! Build of this program: its version, and the commit as `build.rs` found it.

/// Version, as `Cargo.toml` has it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Commit in 12 digits; `unknown` outside git, and in debug builds unless `PROXIER_REVISION` names it.
pub const REVISION: &str = env!("PROXIER_REVISION");
/// Time of the commit, or of `SOURCE_DATE_EPOCH` (RFC 3339, UTC); else `unknown`.
pub const DATE: &str = env!("PROXIER_DATE");

/// Version, commit and date in one line, as `--version` prints them behind the program's name.
pub const LINE: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("PROXIER_REVISION"), ", ", env!("PROXIER_DATE"), ")");
