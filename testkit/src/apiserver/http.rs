//! Just enough HTTP/1.1 for a client of an API server: keep-alive, lengths, chunks.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A client's request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `POST`, …
    pub method: String,
    /// Path, without the query.
    pub path: String,
    /// Parameters of the query, decoded.
    pub query: Vec<(String, String)>,
    /// Token in the header `Authorization: Bearer `.
    pub token: Option<String>,
    /// Media types in the header `Accept`.
    pub accepts: String,
    /// The body, as text.
    pub body: String,
}

impl Request {
    /// The first parameter of this name in the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether it requests a watch.
    pub fn is_watch(&self) -> bool {
        matches!(self.parameter("watch"), Some("1" | "true"))
    }

    /// Reads the next request on a connection; `None` if the client has closed it.
    pub(super) fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return Ok(None) };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let mut request = Request { method, path: decode(path), ..Request::default() };
        request.query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (decode(key), decode(value)))
            .collect();
        let mut length = 0;
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.to_ascii_lowercase().as_str() {
                "accept" => value.trim().clone_into(&mut request.accepts),
                "content-length" => length = value.trim().parse().unwrap_or(0),
                "authorization" => request.token = value.trim().strip_prefix("Bearer ").map(str::to_owned),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        request.body = String::from_utf8_lossy(&body).into_owned();
        Ok(Some(request))
    }
}

/// `%21a+b` as `!a b`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        rest = after;
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', _) => bytes.push(b' '),
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a whole answer. `cut` closes the connection after that many bytes of the body; `pause` waits before each 64
/// bytes.
pub(super) fn answer(
    stream: &mut TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
    cut: Option<usize>,
    pause: Option<Duration>,
) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        201 => "Created",
        _ => "Other",
    };
    let mut head = format!("HTTP/1.1 {status} {reason}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        head.extend([name, ": ", value, "\r\n"]);
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    let sent = body.get(..cut.unwrap_or(body.len())).unwrap_or(body);
    match pause {
        None => stream.write_all(sent)?,
        Some(pause) => {
            for piece in sent.chunks(64) {
                std::thread::sleep(pause);
                stream.write_all(piece)?;
            }
        }
    }
    if cut.is_some() { Err(io::Error::other("cut")) } else { stream.flush() }
}

pub(super) fn start_chunks(stream: &mut TcpStream, content_type: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes())
}

pub(super) fn chunk(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    let head = format!("{:x}\r\n", text.len());
    stream.write_all(&[head.as_bytes(), text, b"\r\n"].concat())
}

/// Writes only the start of a chunk, as a broken connection would.
pub(super) fn half_a_chunk(stream: &mut TcpStream, text: &[u8]) -> io::Result<()> {
    let half = text.get(..text.len() / 2).unwrap_or_default();
    stream.write_all(&[format!("{:x}\r\n", text.len()).as_bytes(), half].concat())
}

pub(super) fn end_chunks(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"0\r\n\r\n")
}
