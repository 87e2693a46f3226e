//! Fetches pages from HTTP servers, so that tests need no program for it.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest time for a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);

/// Longest wait for more of the answer. QEMU without KVM is slow.
const ANSWER: Duration = Duration::from_secs(30);

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page {
    /// Status code, such as 200.
    pub status: u16,
    /// Status line and headers, without the empty line behind them.
    pub head: String,
    /// The body. Bytes that are not UTF-8 are replaced.
    pub body: String,
}

/// Gets `url` (`http://ADDRESS:PORT/PATH`, without host names) in the current thread's network namespace.
///
/// Uses HTTP/1.0 without compression and keep-alive, so that the body is never chunked.
pub fn get(url: &str) -> io::Result<Page> {
    let unlike = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("{what}: {url}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| unlike("not an http:// address"))?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address: SocketAddr = host.parse().map_err(|_no_address| unlike("not ADDRESS:PORT"))?;
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    // In one write: a server may answer the first part that it reads.
    stream.write_all(format!("GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    Ok(Page { status, head: head.to_owned(), body: body.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_page_has_status_head_and_body_and_no_answer_is_an_error() {
        let server = TcpListener::bind("[::1]:0").unwrap();
        let url = format!("http://{}/a?b", server.local_addr().unwrap());
        let answered = std::thread::spawn(move || {
            for answer in ["HTTP/1.0 503 No\r\nX: y\r\n\r\nlater", "HTTP/1.0 200 OK\r\n"] {
                let mut asked = [0; 256];
                let (mut stream, _) = server.accept().unwrap();
                let length = stream.read(&mut asked).unwrap();
                assert!(asked[..length].starts_with(b"GET /a?b HTTP/1.0\r\nHost: [::1]:"));
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let page = get(&url).unwrap();
        assert_eq!((page.status, page.head.as_str(), page.body.as_str()), (503, "HTTP/1.0 503 No\r\nX: y", "later"));
        assert_eq!(get(&url).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        answered.join().unwrap();
        // Not the server's port: another program may have it by now.
        assert_eq!(get("http://[::1]:1/").unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(get("http://localhost/").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
