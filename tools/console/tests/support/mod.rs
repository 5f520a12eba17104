//! A machine for the tests: it answers requests with lines of the recorded session, at a chosen speed, on any number of connections.

use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use trace::stream::{ChunkWriter, Clock, HeaderWriter, NOTHING, Table};
use trace::{Kind, Record};

/// The recorded session.
pub fn session() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/session.txt")
}

/// The lines of the session with counters, without their times.
fn readings() -> Vec<String> {
    let text = std::fs::read_to_string(session()).unwrap();
    let sent = text.lines().filter_map(|line| Some(line.split_once(' ')?.1));
    sent.filter(|line| line.starts_with(r#"{"event":"counters""#)).map(String::from).collect()
}

/// A trace with two exits of guest `b` from one place, and a third one, which comes later.
pub fn trace() -> [Vec<u8>; 2] {
    let mut header = [0; 256];
    let mut names = HeaderWriter::new(&mut header, Clock::default()).unwrap();
    names.name(Table::Guest, 1, NOTHING, "b").unwrap();
    names.name(Table::Reason, 2, NOTHING, "hlt").unwrap();
    let exits = |first, tscs: &[u64]| {
        let mut chunk = [0; 256];
        let mut exits = ChunkWriter::new(&mut chunk, 3, first, 0).unwrap();
        for tsc in tscs {
            exits.push(Record { guest: 1, code: 2, a: 0x1234, ..Record::new(Kind::Exit, *tsc) }).unwrap();
        }
        exits.finish().to_vec()
    };
    [[names.finish().to_vec(), exits(0, &[5, 6])].concat(), exits(2, &[7])]
}

/// A folder that is removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Makes one that nobody else uses.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("sidecore-console-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program called ssh. It is no ssh; it only does what a script says. Returns the PATH that has it.
pub fn ssh(folder: &Folder, script: &str) -> String {
    let path = folder.0.join("ssh");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap())
}

/// A program called ssh that plays a management guest. `pipe` is the command that passes lines on: each request for counters is
/// answered by the next reading, or the last, and a command with `off` makes the file `off`. All other commands run `other`, a script in which
/// `until_off` waits for that file. What ssh was asked for is in the file `asked`, the requests are in `requests`.
pub fn agent(folder: &Folder, pipe: &str, other: &str) -> String {
    let readings: Vec<String> = readings().iter().skip(10).map(|line| format!("{line}\n")).collect();
    let [trace, rest] = trace();
    for (name, bytes) in
        [("readings", readings.concat().into_bytes()), ("trace", trace), ("rest", rest), ("requests", vec![])]
    {
        fs::write(folder.0.join(name), bytes).unwrap();
    }
    let script = format!(
        r#"cd {folder} || exit 99
until_off() {{ while [ ! -e off ]; do sleep 0.02; done; }}
for asked; do :; done
echo "$asked" >>asked
if [ "$asked" != '{pipe}' ]; then
    {other}
    exit
fi
next=0
while read -r line; do
    echo "$line" >>requests
    id=${{line#*'"id":'}}
    id=${{id%%[!0-9]*}}
    case "$line" in
    *'"counters"'*)
        [ $next -eq {last} ] || next=$((next + 1))
        sed -n "${{next}}p" readings ;;
    *'"show"'*) [ ! -e state ] || sed "s/ID/$id/" state ;;
    *'"save"'*) echo '{{"event":"reply","id":'$id',"ok":false,"error":"no trace goes here"}}' ;;
    *off*)
        : >off
        # The end is told to all, and it is told before the rest is here.
        echo '{{"event":"reply","id":'$id',"ok":true}}'
        echo '{{"event":"trace","data":"","end":true}}' ;;
    esac
done"#,
        folder = folder.0.display(),
        last = readings.len(),
    );
    ssh(folder, &script)
}

/// The lines of a file that [`agent`] has written.
pub fn lines(folder: &Folder, name: &str) -> Vec<String> {
    fs::read_to_string(folder.0.join(name)).unwrap().lines().map(String::from).collect()
}

/// What a machine does, and what it got.
#[derive(Clone)]
pub struct Machine {
    /// Requests that it got, in all connections.
    pub requests: Arc<Mutex<Vec<String>>>,
    /// Bytes that it sends in a second; 0: as fast as it can.
    pub speed: Arc<AtomicU64>,
    next: Arc<AtomicU64>,
    readings: Arc<Vec<String>>,
}

impl Machine {
    /// Makes one that sends so many bytes in a second.
    pub fn new(speed: u64) -> Self {
        let readings = readings();
        assert!(readings.len() > 10);
        // From the middle of the session, where the guests have traffic.
        let next = Arc::new(AtomicU64::new(readings.len() as u64 / 3));
        Self { requests: Arc::default(), speed: Arc::new(speed.into()), next, readings: Arc::new(readings) }
    }

    /// Serves a connection until the other end closes it.
    pub fn serve(&self, input: impl Read, mut output: impl Write) -> std::io::Result<()> {
        for line in BufReader::new(input).lines() {
            let line = line?;
            // As on a port that people share.
            let (line, marked) =
                line.strip_prefix('\x1e').map_or((line.clone(), false), |rest| (rest.to_owned(), true));
            self.requests.lock().unwrap().push(line.clone());
            let answer = if line.contains("\"counters\"") {
                let next = self.next.fetch_add(1, Ordering::Relaxed) as usize;
                self.readings[next.min(self.readings.len() - 1)].clone()
            } else if line.contains("\"version\"") {
                r#"{"event":"reply","ok":true,"version":"0.1.0"}"#.to_owned()
            } else if line.contains("\"save\"") {
                format!(r#"{{"event":"trace","data":"{}"}}"#, STANDARD.encode(&trace()[0]))
            } else if line.contains("\"off\"") {
                r#"{"event":"trace","data":"","end":true}"#.to_owned()
            } else if line.contains("\"latency\"") {
                r#"{"event":"latency","on":true,"tsc_hz":1000000,"rows":[{"guest":"b","what":"hlt","count":2,"sum":30,"p50":10,"p90":20,"p99":20,"max":20}]}"#.to_owned()
            } else {
                continue;
            };
            let answer = if marked {
                format!("sidecore> st\r\x1b[K\x1e{answer}\r\n{{\"event\":\"end\",\"reason\":\"faked\"}}\r\n")
            } else {
                format!("{answer}\n")
            };
            self.send(&mut output, &answer)?;
        }
        Ok(())
    }

    fn send(&self, output: &mut impl Write, line: &str) -> std::io::Result<()> {
        for part in line.as_bytes().chunks(50) {
            output.write_all(part)?;
            output.flush()?;
            if let speed @ 1.. = self.speed.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(part.len() as u64 * 1000 / speed));
            }
        }
        Ok(())
    }

    /// Listens at a path. Serves one connection after the other, and each for the time that `lives` says.
    pub fn listen(&self, path: &Path, lives: impl Fn(usize) -> Duration + Send + 'static) {
        let (listener, machine) = (UnixListener::bind(path).unwrap(), self.clone());
        thread::spawn(move || {
            for (n, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { return };
                let (closed, life) = (stream.try_clone().unwrap(), lives(n));
                let timer = thread::spawn(move || {
                    thread::sleep(life);
                    let _ = closed.shutdown(std::net::Shutdown::Both);
                });
                let _ = machine.serve(stream.try_clone().unwrap(), stream);
                timer.join().unwrap();
            }
        });
    }
}
