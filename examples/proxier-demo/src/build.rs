//! The version of this program, and the commit that `build.rs` found.

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The first 12 digits of the commit; `unknown` outside git, and in debug builds unless `PROXIER_REVISION` names it.
pub const REVISION: &str = env!("PROXIER_REVISION");
/// The time of the commit, or of `SOURCE_DATE_EPOCH` (RFC 3339, UTC); otherwise `unknown`.
pub const DATE: &str = env!("PROXIER_DATE");

/// Version, commit and date on one line, as `--version` prints them after the program's name.
pub const LINE: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("PROXIER_REVISION"), ", ", env!("PROXIER_DATE"), ")");
