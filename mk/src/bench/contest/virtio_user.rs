//! Measures the switches with DPDK's virtio-user ports instead of our own driver. One thread forwards between two
//! ports.

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::guests_side::Contest;
use super::peers::{Open, Testpmd, VirtioUser, ours_from};
use super::results::{against, apart, contestant, features, number};
use super::table::Table;
use crate::ui;

/// Sends frames of 60 bytes round through ours, testpmd and Open vSwitch.
pub fn measure(contest: &Contest) -> Result<Value> {
    ui::step("bench", "frames of 60 bytes by DPDK's virtio-user ports: ours, testpmd, Open vSwitch");
    let (folder, cores, huge) = (&contest.folder, contest.cores, contest.huge.is_some());
    // All frames of testpmd have the same source IP address, whichever port sends them.
    let ours = ours_from(&contest.vhost, folder, cores[1], (&[1, 1], 0), |_| 1)?;
    let testpmd = Testpmd::start(folder, cores, huge)?;
    let open = Open::start(folder, cores, huge);
    let mut switches = vec![("ours", &ours.process, &ours.sockets), ("testpmd", &testpmd.process, &testpmd.sockets)];
    match &open {
        Ok(open) => switches.push(("ovs", &open.process, &open.sockets)),
        Err(error) => ui::error(&format!("Open vSwitch takes no part: {error:#}")),
    }
    let mut drivers = Vec::new();
    let mut arguments = vec!["virtio-user".to_owned(), format!("--milliseconds={}", contest.plan.milliseconds)];
    for (name, process, sockets) in switches {
        let driver = VirtioUser::start(folder, name, cores[0], sockets, huge)?;
        let [output, words] = driver.said.each_ref().map(|file| file.display());
        arguments.push(format!("--driver={name},{},{},{output},{words}", process.id(), driver.process.id()));
        drivers.push(driver);
    }
    contest.drive(&arguments)
}

/// Adds the rates and their ratios to the table, and how busy the driving side was. Near 100 %, the driving side is the
/// bottleneck.
pub fn figures(table: &mut Table, result: &Value) -> Result<()> {
    let what = "   60 B virtio-user";
    let ours = contestant(result, "ours").context("no result of ours with virtio-user")?;
    for one in result["contestants"].as_array().into_iter().flatten() {
        table.note(&format!(
            "{what} {:<8} p50 {:>6.2} Mpps, the driving side busy for {:.0} % of the time   {}",
            one["name"].as_str().unwrap_or_default(),
            number(one, "p50")? / 1e6,
            100.0 * number(one, "driver_busy")?,
            features(one).join(" ")
        ));
    }
    apart(table, what, result);
    for (name, aim, what) in [("testpmd", 1.35, "testpmd mac"), ("ovs", 1.7, "OVS-DPDK NORMAL")] {
        let what = format!("60 B, driven by virtio-user: ours against {what}");
        against(table, result, ours, name, (&what, aim));
    }
    Ok(())
}
