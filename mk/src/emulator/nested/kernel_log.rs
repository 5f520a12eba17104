//! What the first-level Linux says in its kernel log during a run.

/// Words in lines that KVM writes, or by which Linux says that something in it went wrong.
const COMPLAINTS: [&str; 10] =
    ["kvm", "svm", "warning:", "bug:", "oops", "call trace", "stall", "lockup", "general protection", "hung task"];

/// The lines of a kernel's log between the marks of a run. `None`: the second mark has not come.
pub fn of_run(log: &str, number: u32) -> Option<Vec<&str>> {
    let ours = |line: &str, word: &str| line.trim_end().ends_with(&format!("sidecore: run {number} {word}"));
    let lines: Vec<&str> = log.lines().collect();
    let end = lines.iter().rposition(|line| ours(line, "ends"))?;
    let begin = lines[..end].iter().rposition(|line| ours(line, "begins"))?;
    Some(lines[begin + 1..end].to_vec())
}

/// Those lines in which KVM says something, or Linux complains.
pub fn complaints<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let complains = |line: &str| {
        let line = line.to_ascii_lowercase();
        COMPLAINTS.iter().any(|word| line.contains(word))
    };
    lines.iter().copied().filter(|line| complains(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "[    4.95] kvm_amd: Nested Paging enabled\r\n[    5.1] sidecore: run 1 begins\r\n[    9.0] sidecore: run 1 ends\r\n\
                       [    9.2] sidecore: run 12 begins\r\n[   20.1] random: crng reseeded\r\n\
                       [   21.9] kvm [81]: vcpu2, guest rIP: 0x20b1 unhandled rdmsr: 0xc0010055\r\n[   30.0] sidecore: run 12 ends\r\n";

    #[test]
    fn only_the_lines_of_a_run_count() {
        assert_eq!(of_run(LOG, 1), Some(vec![]));
        assert_eq!(of_run(LOG, 12).map(|lines| lines.len()), Some(2));
        assert_eq!(of_run(LOG, 2), None);
        let unfinished = LOG.split("[   30.0]").next().unwrap();
        assert_eq!(of_run(unfinished, 12), None);
    }

    #[test]
    fn what_kvm_says_is_a_complaint_and_so_is_what_linux_says_of_itself() {
        let lines = of_run(LOG, 12).unwrap();
        assert_eq!(complaints(&lines), [lines[1]]);
        let own = ["[ 1.0] WARNING: CPU: 1 PID: 81 at arch/x86/foo.c:10", "[ 1.1] virtio_blk virtio0: 4/0/0 queues"];
        assert_eq!(complaints(&own), [own[0]]);
    }
}
