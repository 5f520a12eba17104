//! An HTTP/1.1 server for `metrics`: GET of two paths, one request a connection.
//!
//! Limits: a request's head of 8 KiB, 32 headers, 5 seconds, and 8 connections at a time.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Most bytes of a request.
const HEAD: usize = 8 << 10;
/// Time for a request and its response.
const TIME: Duration = Duration::from_secs(5);
/// Most connections at a time.
const CONNECTIONS: usize = 8;

/// A response.
pub struct Response {
    /// Status code with its reason.
    pub status: &'static str,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: Vec<u8>,
}

impl Response {
    /// A response of plain text.
    #[must_use]
    pub fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.as_bytes().to_vec() }
    }
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Its path, without what follows `?`.
    pub path: String,
    /// Its headers `Accept`, with commas between them. Empty: there is none.
    pub accept: String,
}

/// Serves requests for good. `get` makes the response.
pub fn serve(listener: &TcpListener, get: impl Fn(&Request) -> Response + Send + Sync + 'static) {
    let (get, open) = (Arc::new(get), Arc::new(AtomicUsize::new(0)));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (get, open) = (get.clone(), open.clone());
        thread::spawn(move || {
            // A client that breaks the connection is no error.
            let _ = answer(stream, &*get);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn answer(mut stream: TcpStream, get: &dyn Fn(&Request) -> Response) -> io::Result<()> {
    stream.set_write_timeout(Some(TIME))?;
    let response = read(&mut stream)?.map_or_else(|refused| refused, |request| get(&request));
    let Response { status, content_type, body } = response;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// Reads a request. Returns it, or the response if there is none to be served.
fn read(stream: &mut TcpStream) -> io::Result<Result<Request, Response>> {
    let (mut bytes, end) = (vec![0; HEAD], Instant::now() + TIME);
    let mut len = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || len == HEAD {
            return Ok(Err(Response::text("400 Bad Request", "the request is too long, or too slow\n")));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[len..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
        if let Some(result) = parse(&bytes[..len]) {
            return Ok(result);
        }
    }
}

/// What is asked for. `None`: there is more to come.
fn parse(bytes: &[u8]) -> Option<Result<Request, Response>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => None,
        Err(error) => Some(Err(Response::text("400 Bad Request", &format!("{error}\n")))),
        Ok(httparse::Status::Complete(_)) if request.method != Some("GET") => {
            Some(Err(Response::text("405 Method Not Allowed", "expected GET\n")))
        }
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or("/");
            let path = path.split('?').next().unwrap_or(path).to_owned();
            let named = request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("accept"));
            let values: Vec<_> = named.map(|header| String::from_utf8_lossy(header.value)).collect();
            Some(Ok(Request { path, accept: values.join(",") }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap();
        thread::spawn(move || {
            serve(&listener, |request| match request.path.as_str() {
                "/metrics" => Response::text("200 OK", &format!("body{}", request.accept)),
                other => Response::text("404 Not Found", other),
            });
        });
        let mut stream = TcpStream::connect(place).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_request_is_answered_by_its_path() {
        let answer = ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nbody"), "{answer}");
        assert!(ask(b"GET /other HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    }

    #[test]
    fn all_accept_headers_are_read() {
        let answer = ask(b"GET /metrics HTTP/1.1\r\naccept: a/b;q=0.5\r\nHost: x\r\nACCEPT: c/d\r\n\r\n");
        assert!(answer.ends_with("\r\n\r\nbodya/b;q=0.5,c/d"), "{answer}");
    }

    #[test]
    fn what_is_no_request_is_refused() {
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(b"\x00\x01\x02\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(ask(&[b"GET / HTTP/1.1\r\nA: ".as_slice(), &[b'x'; 9000]].concat()).starts_with("HTTP/1.1 400 "));
    }
}
