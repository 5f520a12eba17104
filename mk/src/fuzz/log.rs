//! What libFuzzer prints while it runs.

/// The figures of a run so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// Inputs that were run.
    pub executions: u64,
    /// Edges that inputs have reached.
    pub edges: u64,
    /// Edges that the corpus had reached before the run.
    pub edges_at_start: u64,
    /// Edges of the program.
    pub all_edges: u64,
}

impl Log {
    /// Reads the output so far. A last line that is not whole may count too little.
    pub fn read(text: &str) -> Self {
        let mut log = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("INFO: Loaded ") {
                log.all_edges = log.all_edges.max(between(rest, "(", " inline 8-bit counters"));
            } else if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
                log.executions = number.trim().parse().unwrap_or(log.executions);
            } else if let Some(rest) = line.strip_prefix('#') {
                let edges = between(rest, "cov: ", " ");
                log.executions = log.executions.max(between(rest, "", "\t"));
                log.edges = log.edges.max(edges);
                if rest.contains("\tINITED ") {
                    log.edges_at_start = edges;
                }
            }
        }
        log
    }
}

/// The number between two marks; 0 if there is none.
fn between(text: &str, begin: &str, end: &str) -> u64 {
    let found = text.split_once(begin).and_then(|(_, rest)| rest.split_once(end));
    found.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "INFO: Running with entropic power schedule (0xFF, 100).\n\
        INFO: Loaded 1 modules   (17482 inline 8-bit counters): 17482 [0x1, 0x2), \n\
        INFO:       12 files found in /x\n\
        #13\tINITED cov: 812 ft: 1500 corp: 12/3Kb exec/s: 0 rss: 50Mb\n\
        #2048\tNEW    cov: 815 ft: 1501 corp: 13/3Kb lim: 300 exec/s: 0 rss: 50Mb L: 99/99 MS: 1 CopyPart-\n\
        #4096\tpulse  cov: 815 ft: 1501 corp: 13/3Kb lim: 300 exec/s: 2048 rss: 50Mb\n";

    #[test]
    fn figures_of_a_run_that_goes_on() {
        let log = Log { executions: 4096, edges: 815, edges_at_start: 812, all_edges: 17482 };
        assert_eq!(Log::read(TEXT), log);
    }

    #[test]
    fn figures_of_a_run_that_has_ended() {
        let text = format!(
            "{TEXT}Done 5000 runs in 2 second(s)\nstat::number_of_executed_units: 5000\nstat::peak_rss_mb: 1\n"
        );
        assert_eq!(Log::read(&text).executions, 5000);
        assert_eq!(Log::read(""), Log::default());
    }
}
