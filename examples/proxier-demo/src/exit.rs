//! Exit codes of the program.

pub const FAILED: u8 = 1;
/// Bad usage or bad input.
pub const BAD_INPUT: u8 = 2;
/// `plan --detailed-exitcode`: something would change. Its errors are all [`FAILED`].
pub const CHANGES: u8 = 2;
/// `diff`: clients will see something differently.
pub const DIFFERS: u8 = 3;

/// All codes with their meanings, for the help and the documentation.
pub const MEANINGS: [(u8, &str); 4] = [
    (0, "done; run: the process was asked to end, or its configuration has changed"),
    (FAILED, "failed; trace --live: the kernel differs; plan --detailed-exitcode: any error"),
    (BAD_INPUT, "bad usage or bad input; plan --detailed-exitcode: something would change or is held back"),
    (DIFFERS, "diff: clients will see something differently"),
];
