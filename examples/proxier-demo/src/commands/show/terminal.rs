//! Standard output: a terminal whose content is replaced each time, or a stream of blocks.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

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
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Longest wait for a terminal at the end; one that is stopped takes nothing.
const PATIENCE: Duration = Duration::from_secs(1);

impl Screen {
    pub(super) async fn enter() -> io::Result<Self> {
        let screen = Screen { is_terminal: io::stdout().is_terminal() };
        if screen.is_terminal {
            write(ENTER.to_owned()).await?;
        }
        Ok(screen)
    }

    pub(super) fn size(&self) -> Option<Size> {
        self.is_terminal.then(|| asked().unwrap_or(Size::USUAL))
    }

    /// Replaces the previous lines; a stream gets them with an empty line after them.
    pub(super) async fn draw(&self, lines: &[String]) -> io::Result<()> {
        let lines: Vec<String> = lines.iter().map(|line| Visible(line).to_string()).collect();
        write(if self.is_terminal { frame(&lines) } else { format!("{}\n\n", lines.join("\n")) }).await
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            let (done, ended) = channel::<()>();
            thread::spawn(move || {
                let _may_be_gone = write_now(LEAVE);
                drop(done);
            });
            let _late = ended.recv_timeout(PATIENCE);
        }
    }
}

/// Writes to standard output on another thread: this one notices signals while the reader does not read.
pub(super) async fn write(text: String) -> io::Result<()> {
    tokio::task::spawn_blocking(move || write_now(&text)).await?
}

fn write_now(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
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
