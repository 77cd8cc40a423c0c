//! Tables and times, as text for people.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Print rows in columns, each as wide as its widest cell; the last one is not padded. Nothing in a cell begins a
/// line or gives a terminal orders.
pub(crate) fn columns(head: &[&str], rows: &[impl AsRef<[String]>]) -> io::Result<()> {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| in_a_line(cell)).collect()).collect();
    let lines = || std::iter::once(&head).chain(&rows);
    let mut widths = vec![0; head.len()];
    for line in lines() {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in lines() {
        let start = text.len();
        for (cell, width) in line.iter().zip(&widths) {
            text += cell;
            text.extend(std::iter::repeat_n(' ', width + 2 - cell.chars().count()));
        }
        text.truncate(start + text[start..].trim_end().len());
        text.push('\n');
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// The text without what a terminal would obey: names and messages may come from inside a sandbox.
pub(crate) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The same for a part of a line: it cannot begin another.
pub(crate) fn in_a_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Print one line.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()
}

/// A number of bytes: `1.5 MiB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    #[allow(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let mut size = bytes as f64;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{size:.1} {}", UNITS[unit]) }
}

/// A time as RFC 3339, in UTC.
pub(crate) fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// A length of time that somebody asked for: `1m 30s`, `500ms`.
pub(crate) fn exactly(length: Duration) -> String {
    humantime::format_duration(length).to_string()
}

/// A length of time, in whole seconds: `1h 5m`.
pub(crate) fn length(length: Duration) -> String {
    humantime::format_duration(Duration::from_secs(length.as_secs())).to_string()
}
