//! The page of `cargo mk bench paper`: HTML that is XML too, with the pictures in it. It loads nothing and has no script.

use std::fmt::Write as _;

use anyhow::Result;

use super::chart::{Chart, Paper, Section, Series};
use super::svg;

/// What stands where there is no number.
pub const NOT_RUN: &str = "not run";

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fff; --text: #1d2126; --soft: #5b646e; --line: #d5dae0; --box: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171a; --text: #e4e8ec; --soft: #9aa4af; --line: #363c43; --box: #1d2126; }
}
body { background: var(--paper); color: var(--text); font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { margin-top: 2.2rem; }
svg { width: 100%; height: auto; }
p.soft, footer { color: var(--soft); }
p.paper { background: var(--box); border-left: 3px solid var(--line); padding: 0.5rem 0.8rem; }
p.absent { border: 1px dashed var(--line); padding: 1.5rem; text-align: center; color: var(--soft); }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0.1rem 1.2rem; font-size: 0.9rem; }
ul.legend span { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; border-radius: 2px; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: 0.2rem 0.7rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; }
summary { cursor: pointer; }
";

/// A text in which no character means something in XML.
fn plain(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A text of this program, in which words between backticks are of a configuration or a command line.
fn marked(text: &str) -> String {
    let mut html = String::new();
    for (number, part) in plain(text).split('`').enumerate() {
        if number > 0 {
            html.push_str(if number % 2 == 1 { "<code>" } else { "</code>" });
        }
        html.push_str(part);
    }
    html
}

/// The page with these sections.
pub fn page(sections: &[Section]) -> Result<String> {
    let mut html = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>sidecore: pictures of the papers</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <h1>sidecore: pictures of the papers</h1>\n\
         <p>The experiments of two papers, with sidecore. ELVIS: N. Har'El and others, Efficient and Scalable Paravirtual I/O \
         System, USENIX ATC 2013. VPE: J. Liu and B. Abali, Virtualization Polling Engine, ICS 2009. Each picture says where it ran, \
         what its numbers are worth there, and what the paper had. All numbers are in paper.json.</p>\n"
    );
    for section in sections {
        write_section(&mut html, section)?;
    }
    html.push_str("<footer><p>Written by <code>cargo mk bench paper</code>.</p></footer>\n</body>\n</html>\n");
    Ok(html)
}

fn write_section(html: &mut String, section: &Section) -> Result<()> {
    let Section { title, about, platform, quick, charts } = section;
    let ran = match platform.as_deref() {
        Some("qemu") => "Ran on QEMU's translator, which has AMD SVM.",
        Some("bochs") => "Ran on Bochs, which has Intel VT-x.",
        Some("kvm") => "Ran on QEMU with hardware virtualization that nests.",
        Some(_) => "Ran on a platform that this version does not know.",
        None => "This part was not run.",
    };
    let amounts = if *quick { " With small amounts (<code>--quick</code>)." } else { "" };
    writeln!(html, "<h2>{}</h2>\n<p>{}</p>\n<p class=\"soft\">{ran}{amounts}</p>", plain(title), marked(about))?;
    charts.iter().try_for_each(|chart| write_chart(html, chart, platform.as_deref()))
}

fn write_chart(html: &mut String, chart: &Chart, platform: Option<&str>) -> Result<()> {
    writeln!(html, "<h3>{}</h3>", plain(&chart.title))?;
    match platform {
        Some(platform) if !chart.series.is_empty() => {
            writeln!(html, "<figure>\n{}</figure>", svg::draw(chart)?)?;
            write_legend(html, &chart.series)?;
            let (meaning, note) = (chart.by.meaning(platform), chart.note);
            writeln!(html, "<p class=\"soft\">{}: {} {}</p>", plain(platform), marked(meaning), marked(note))?;
            write_paper(html, &chart.paper)?;
            write_table(html, chart)?;
        }
        _ => {
            writeln!(html, "<p class=\"absent\">{NOT_RUN}</p>")?;
            write_paper(html, &chart.paper)?;
        }
    }
    Ok(())
}

fn write_legend(html: &mut String, series: &[Series]) -> Result<()> {
    html.push_str("<ul class=\"legend\">");
    for (number, Series { name, .. }) in series.iter().enumerate() {
        let colour = svg::colour_text(number);
        write!(html, "<li><span style=\"background: {colour}\"></span>{}</li>", plain(name))?;
    }
    html.push_str("</ul>\n");
    Ok(())
}

fn write_paper(html: &mut String, Paper { place, had, hardware }: &Paper) -> Result<()> {
    let (place, had, hardware) = (plain(place), marked(had), plain(hardware));
    writeln!(html, "<p class=\"paper\"><strong>{place}</strong>: {had} On: {hardware}.</p>")?;
    Ok(())
}

fn write_table(html: &mut String, chart: &Chart) -> Result<()> {
    html.push_str("<details><summary>The numbers</summary>\n<div class=\"wide\"><table>\n<tr>");
    write!(html, "<th>{}</th>", plain(chart.across))?;
    for Series { name, .. } in &chart.series {
        write!(html, "<th>{}</th>", plain(name))?;
    }
    html.push_str("</tr>\n");
    for (at, label) in chart.labels.iter().enumerate() {
        write!(html, "<tr><th>{}</th>", plain(label))?;
        for series in &chart.series {
            match series.values.get(at).copied().flatten() {
                Some(value) => write!(html, "<td>{value}</td>")?,
                None => write!(html, "<td>{NOT_RUN}</td>")?,
            }
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table></div></details>\n");
    Ok(())
}
