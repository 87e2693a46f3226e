//! Time as a value.

use std::time::Duration;

/// A point in time: the time since an origin that the caller chooses, such as the start of the process, by a monotonic
/// clock.
pub type Moment = Duration;
