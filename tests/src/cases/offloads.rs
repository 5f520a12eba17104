//! Checksum and TCP segmentation offloads between guests. If the receiver takes partial checksums and unsegmented
//! frames, nobody does the work. If it does not, the engine does it.

use anyhow::{Result, ensure};
use control::Counters;

use crate::counts::net;
use crate::guests::Guest;
use crate::scenario::{Context, seconds};
use crate::session::Session;
use crate::tcp;

/// Bytes of each run of iperf3, in MiB.
const MIB: u64 = 8;
/// Payload of a segment between guests with an MTU of 1,500.
const SEGMENT: u64 = 1448;

/// Offloads of the sender, by ethtool's short and long names. Segmentation comes before checksums: it depends on them,
/// so switching them off switches it off too. Linux's driver can switch offloads of the receiver only by a control
/// queue. The other scenario has guests that are not offered them.
const FEATURES: [(&str, &str); 4] = [
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
    ("tx", "tx-checksum-ip-generic"),
];

/// Two guests, number `first` and the next: one is offered no offload, the other checksums alone.
pub fn less_offered(first: usize) -> [Guest; 2] {
    let guest =
        |number, offered| Guest::new(number).full().peer(1).net(&format!("offloads = \"{offered}\"")).then("obey");
    [guest(first, "none"), guest(first + 1, "csum")]
}

fn switch(session: &mut Session, short: &str, long: &str, state: &str) -> Result<()> {
    for name in ["a", "b"] {
        let set = session.act(name, &format!("set:{short}:{long}:{state}"), seconds(240))?;
        ensure!(set["good"] == true, "{short} {state} of {name}: {set}");
    }
    Ok(())
}

/// The mean length of a guest's frames in a window, in bytes.
fn mean(before: &Counters, after: &Counters, name: &str) -> Result<u64> {
    let (before, after) = (net(before, name)?, net(after, name)?);
    Ok((after.tx_bytes - before.tx_bytes) / (after.tx_packets - before.tx_packets).max(1))
}

/// Runs TCP from `other` to a, then from a to `other`, [`MIB`] each. Returns the mean length of the sender's frames for
/// each way.
fn transfer(context: &mut Context<'_>, session: &mut Session, other: &str, what: &str) -> Result<[u64; 2]> {
    let mut means = [0; 2];
    for (mean_of, (way, sender)) in means.iter_mut().zip([("", other), (":reverse", "a")]) {
        let before = session.counters()?;
        let stream = session.act(other, &tcp::action(MIB, way), seconds(240))?;
        let after = session.counters()?;
        let dropped = tcp::dropped(&before, &after, &[other, "a"])?;
        tcp::arrived_at_once(&mut context.figures, &format!("from {sender}, {what}"), &stream, MIB, dropped)?;
        *mean_of = mean(&before, &after, sender)?;
    }
    Ok(means)
}

/// Switches each offload off and on at guests a and b. At the end all are on again.
pub fn switched(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.act("a", "iperf-server", seconds(60))?;
    session.act("b", "ping:1", seconds(240))?;
    let begin = session.counters()?;
    for (mean, sender) in transfer(context, session, "b", "all on")?.into_iter().zip(["b", "a"]) {
        context.figures.at_least(&format!("all on: mean bytes of a frame from {sender}"), mean, 3_000)?;
    }
    let mut switched = 0_u64;
    for (short, long) in FEATURES {
        for state in ["off", "on"] {
            switch(session, short, long, state)?;
            transfer(context, session, "b", &format!("{short} {state}"))?;
            switched += 1;
        }
    }
    context.figures.exactly("offloads switched", switched, 2 * FEATURES.len())?;

    for (short, long) in &FEATURES[..2] {
        switch(session, short, long, "off")?;
    }
    for (mean, sender) in transfer(context, session, "b", "no segmentation")?.into_iter().zip(["b", "a"]) {
        context.figures.at_most(&format!("no segmentation: mean bytes of a frame from {sender}"), mean, 1_514)?;
    }
    // Both guests took all frames as they were, so the engine had nothing to do.
    let end = session.counters()?;
    for name in ["a", "b"] {
        let (before, after) = (net(&begin, name)?, net(&end, name)?);
        context.figures.exactly(&format!("segments cut for {name}"), after.segments - before.segments, 0)?;
        context.figures.exactly(&format!("checksums computed for {name}"), after.checksums - before.checksums, 0)?;
        context.figures.exactly(&format!("frames of {name} refused"), after.bad_headers() - before.bad_headers(), 0)?;
    }
    for (short, long) in FEATURES[..2].iter().rev() {
        switch(session, short, long, "on")?;
    }
    Ok(())
}

/// TCP and a file between guest a, which is offered everything, and each of [`less_offered`].
pub fn software(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.act("a", "iperf-server", seconds(60))?;
    let sent = session.act("a", &format!("serve:{MIB}"), seconds(120))?;
    for (other, offered) in [("d", "none"), ("e", "csum")] {
        session.act(other, "ping:1", seconds(240))?;
        let begin = session.counters()?;
        let of = |what: &str| format!("{offered}: {what}");
        let [from_other, from_a] = transfer(context, session, other, offered)?;
        context.figures.at_least(&of("mean bytes of a frame from a"), from_a, 3_000)?;
        context.figures.at_most(&of(&format!("mean bytes of a frame from {other}")), from_other, 1_514)?;
        let received = session.act(other, "fetch", seconds(240))?;
        context.figures.same_file(&of("files with the right checksum"), &sent, &received)?;
        let end = session.counters()?;
        let since = |name| Ok::<_, anyhow::Error>((net(&begin, name)?, net(&end, name)?));
        let ((a_before, a), (other_before, other_after)) = (since("a")?, since(other)?);
        let least = 2 * (MIB << 20) / SEGMENT * 9 / 10;
        let segments = other_after.segments - other_before.segments;
        context.figures.at_least(&of(&format!("segments cut for {other}")), segments, least)?;
        context.figures.exactly(&of("segments cut for a"), a.segments - a_before.segments, 0)?;
        // The checksum of a segment is not counted separately, so this counts those of short frames.
        let checksums = other_after.checksums;
        if offered == "none" {
            context.figures.at_least(&of(&format!("checksums computed for {other}")), checksums, 1)?;
        } else {
            context.figures.exactly(&of(&format!("checksums computed for {other}")), checksums, 0)?;
        }
        let bad = a.bad_headers() - a_before.bad_headers() + other_after.bad_headers();
        context.figures.exactly(&of("frames refused"), bad, 0)?;
    }
    Ok(())
}
