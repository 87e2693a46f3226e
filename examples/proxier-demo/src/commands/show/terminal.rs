//! Standard output: a terminal whose content is replaced each time, or a stream of blocks.

use std::io::{IsTerminal as _, Write as _};

use crate::output::Visible;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl Size {
    /// Size of a terminal that does not report one.
    const USUAL: Size = Size { rows: 24, columns: 80 };
}

/// Standard output. Dropping it restores a terminal's content and cursor.
#[derive(Debug)]
pub(super) struct Screen {
    is_terminal: bool,
}

/// The second page of a terminal, without its cursor; and back.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

impl Screen {
    pub(super) fn enter() -> std::io::Result<Self> {
        let mut out = std::io::stdout().lock();
        let is_terminal = out.is_terminal();
        if is_terminal {
            out.write_all(ENTER)?;
        }
        Ok(Screen { is_terminal })
    }

    pub(super) fn size(&self) -> Option<Size> {
        self.is_terminal.then(|| asked().unwrap_or(Size::USUAL))
    }

    /// Replaces the previous lines; a stream gets them with an empty line after them.
    pub(super) fn draw(&self, lines: &[String]) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let lines: Vec<String> = lines.iter().map(|line| Visible(line).to_string()).collect();
        let bytes = if self.is_terminal { frame(&lines) } else { format!("{}\n\n", lines.join("\n")) };
        out.write_all(bytes.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            let mut out = std::io::stdout().lock();
            let _may_be_gone = out.write_all(LEAVE).and_then(|()| out.flush());
        }
    }
}

/// Bytes that draw the lines from the upper left corner and erase the rest of earlier lines, and the rows below. No
/// line feed follows the last line, since it would scroll.
fn frame(lines: &[String]) -> String {
    format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"))
}

/// Size reported by the terminal. `None`: it reports none.
fn asked() -> Option<Size> {
    let mut size = nix::libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: ioctl_tty(2): TIOCGWINSZ writes one `winsize` to the given address; `size` is a `winsize` that lives until the call returns.
    #[expect(unsafe_code, reason = "the kernel's own call, which nix does not wrap")]
    let answer = unsafe { nix::libc::ioctl(nix::libc::STDOUT_FILENO, nix::libc::TIOCGWINSZ, &raw mut size) };
    let size = Size { rows: size.ws_row.into(), columns: size.ws_col.into() };
    (answer == 0 && size.rows > 0 && size.columns > 0).then_some(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_erases_the_previous_one() {
        let lines = ["a".to_owned(), "b".to_owned()];
        assert_eq!(frame(&lines), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }
}
