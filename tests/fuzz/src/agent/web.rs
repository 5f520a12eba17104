//! Requests for metrics, by a connection to the server.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::thread;

use sidecore_agent::http::{self, Response};

use crate::input::Input;
use crate::planted::planted;

const PIECES: [&str; 24] = [
    "GET ",
    "POST ",
    "/metrics",
    "/",
    "?x=1",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "\r\n",
    "\r\n\r\n",
    "\n",
    "\r",
    "Accept: ",
    "accept: a/b;q=0.5\r\n",
    "Host: a\r\n",
    ": ",
    " ",
    "\0",
    "\u{fc}",
    "X: y\r\n",
    "Content-Length: 5\r\n",
    "GET /metrics HTTP/1.1\r\n",
    "GET /a?b?c HTTP/1.1\r\n",
    "%00",
    "\t",
];

/// The only server of this process. Its answer has the path, and what is accepted.
fn server() -> SocketAddr {
    static SERVER: OnceLock<SocketAddr> = OnceLock::new();
    *SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let place = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            http::serve(&listener, |request| Response::text("200 OK", &format!("{}\n{}", request.path, request.accept)))
        });
        place
    })
}

/// Runs one input.
pub fn run(input: &mut Input<'_>) {
    let mut bytes = super::said::pieces(input, &PIECES, "").into_bytes();
    if input.byte() < 64 {
        bytes.extend(vec![b'x'; input.within(0, 9000) as usize]);
    }
    let mut stream = TcpStream::connect(server()).expect("the server");
    // The port of a connection that is reset can be had again at once.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the structure is there, and has this length.
    let result = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0);
    let cut = input.within(0, bytes.len() as u64 + 1) as usize;
    // The server may have answered already, and closed the connection.
    let _ = stream.write_all(&bytes[..cut]).and_then(|()| stream.write_all(&bytes[cut..]));
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let whole = stream.read_to_end(&mut answer).is_ok();
    if !whole || answer.is_empty() {
        return;
    }
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    let known = ["HTTP/1.1 200 OK", "HTTP/1.1 400 Bad Request", "HTTP/1.1 405 Method Not Allowed"];
    assert!(known.contains(&status) && !planted(), "{answer:?}");
    let len = lines.find_map(|line| line.strip_prefix("Content-Length: ")).expect("a length");
    assert_eq!(len.parse(), Ok(body.len()), "{answer:?}");
    if status == known[0] {
        let (path, _) = body.split_once('\n').expect("the path");
        assert!(!path.contains(['?', ' ', '\r']), "{path:?}");
        assert!(String::from_utf8_lossy(&bytes).contains(path), "{path:?}");
        assert!(bytes.starts_with(b"GET ") || bytes.starts_with(b"\r\n") || bytes.starts_with(b"\n"), "{bytes:?}");
    }
}
