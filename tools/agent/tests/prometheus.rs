//! Prometheus itself reads the metrics, as OpenMetrics, loads the alert rules and evaluates them and the dashboard's queries.
//!
//! Needs `target/deps/prometheus`, which `cargo mk` fetches for the scenario `management`. Without it the test says so and passes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use control::{Block, Count, Counters, Engine, ExitCount, Guest, GuestState, Port, Uplink, VcpuCounters};
use serde_json::Value;
use sidecore_agent::exposition::Format;
use sidecore_agent::{http, metrics};

/// Ends the program with the test.
struct Running(Child, PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = fs::remove_dir_all(&self.1);
    }
}

/// A reading. All counts grow with `step`.
fn reading(step: u64) -> Counters {
    let count = |kind: &'static str| Count { kind: kind.into(), count: step };
    let guest = |name: &str| Guest {
        name: name.into(),
        state: GuestState::Running,
        starts: 1,
        memory: 64 << 20,
        kept: 5,
        vcpus: vec![VcpuCounters {
            core: 1,
            exits: vec![ExitCount { reason: "cpuid".into(), count: step, cycles: step << 20 }],
        }],
        ports: vec![Port { rx_packets: step, drops: vec![count("rx_no_buffer")], ..Port::default() }],
        blocks: vec![Block { counts: vec![count("errors"), count("reads")], ..Block::default() }],
        ..Guest::default()
    };
    let uplink =
        Uplink { name: "first".into(), counts: vec![count("rx_packets"), count("rx_bytes")], ..Uplink::default() };
    Counters {
        tsc: step << 31,
        tsc_hz: 2_000_000_000,
        guests: vec![guest("a"), guest("odd \"\\\n name")],
        engines: vec![Engine {
            busy_cycles: step << 30,
            idle_cycles: step << 28,
            uplinks: vec![uplink],
            ..Engine::default()
        }],
        ..Counters::default()
    }
}

/// What Prometheus answers.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Evaluates an expression.
fn query(port: u16, expression: &str) -> Value {
    let escaped: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    get(port, &format!("/api/v1/query?query={escaped}")).unwrap_or_default()
}

/// Asks again until there is an answer.
fn wait<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(180);
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < end, "Prometheus is not ready: {what}");
        thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn prometheus_reads_metrics_and_evaluates_alerts_and_dashboard() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = here.join("../../target/deps/prometheus/usr/bin/prometheus");
    if !program.is_file() {
        eprintln!("{} is not there: Prometheus has not read the metrics", program.display());
        return;
    }

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let agent = listener.local_addr().unwrap().port();
    let (open, step) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let served = open.clone();
    thread::spawn(move || {
        http::serve(&listener, move |request| {
            let format = Format::accepted(&request.accept);
            served.fetch_add((format == Format::OpenMetrics).into(), Ordering::Relaxed);
            let body = metrics::write(&reading(step.fetch_add(1, Ordering::Relaxed) + 1), format).into_bytes();
            http::Response { status: "200 OK", content_type: format.content_type(), body }
        });
    });

    let place = std::env::temp_dir().join(format!("sidecore-prometheus-{}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    let config = place.join("prometheus.yml");
    let rules = here.join("prometheus/alerts.yml");
    let text = format!(
        "global:\n  scrape_interval: 2s\n  scrape_timeout: 2s\n  evaluation_interval: 1s\nrule_files: ['{}']\nscrape_configs:\n  \
         - job_name: sidecore\n    static_configs:\n      - targets: ['127.0.0.1:{agent}']\n",
        rules.display()
    );
    fs::write(&config, text).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", place.join("data").display()))
        .args([&format!("--web.listen-address=127.0.0.1:{port}"), "--log.level=error"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let _running = Running(child, place);

    // It has read everything, and nothing was refused.
    let series = metrics::write(&reading(1), Format::Text).lines().filter(|line| !line.starts_with('#')).count();
    wait("scrape", || {
        let targets = get(port, "/api/v1/targets")?;
        let target = targets["data"]["activeTargets"][0].clone();
        // On a busy machine a scrape may be late.
        let late = target["lastError"].as_str().is_some_and(|error| error.contains("deadline"));
        assert!(target["health"] != "down" || late, "{target}");
        (target["health"] == "up" && open.load(Ordering::Relaxed) > 3).then_some(())
    });
    let scraped = query(port, "scrape_samples_scraped")["data"]["result"][0]["value"][1].clone();
    assert_eq!(scraped, series.to_string());

    // It knows units and kinds from OpenMetrics.
    let known = get(port, "/api/v1/metadata").unwrap();
    let of = |name: &str, what: &str| known["data"][name][0][what].clone();
    assert_eq!(
        (of("sidecore_engine_seconds", "type"), of("sidecore_engine_seconds", "unit")),
        ("counter".into(), "seconds".into()),
        "{}",
        known["data"]
    );

    // Each rule is evaluated without an error.
    wait("rules", || {
        let rules = get(port, "/api/v1/rules")?["data"]["groups"][0]["rules"].as_array().cloned()?;
        assert!(rules.len() >= 8 && rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
        rules.iter().all(|rule| rule["health"] == "ok").then_some(())
    });
    // The reading has disk errors, and all guests run.
    let firing = wait("alert", || {
        let alerts = get(port, "/api/v1/alerts")?["data"]["alerts"].as_array().cloned()?;
        let names: Vec<String> =
            alerts.iter().filter_map(|alert| Some(alert["labels"]["alertname"].as_str()?.to_owned())).collect();
        names.contains(&"SidecoreDiskErrors".to_owned()).then_some(names)
    });
    assert!(!firing.contains(&"SidecoreGuestStopped".to_owned()), "{firing:?}");

    // Each query of the dashboard has a result, with any choice of its variables.
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(here.join("prometheus/dashboard.json")).unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let plain = expression.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$guest", ".*");
            let answer = query(port, &plain);
            let results = answer["data"]["result"].as_array().map_or(0, Vec::len);
            assert!(answer["status"] == "success" && results > 0, "{plain}: {answer}");
        }
    }
}
