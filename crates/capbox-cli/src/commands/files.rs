//! `capbox files`: files and folders of a sandbox.

use std::ffi::OsString;
use std::io::{self, Write};

use capbox::api::{AnySandbox, Entry, EntryKind, Match, ReadRange, SearchQuery, WriteOptions};
use capbox::prelude::{Capability, Files, SandboxPath};
use capbox::{Error, ErrorKind, Result};
use clap::Subcommand;
use serde::Serialize;

use crate::args::{On, Place, sandbox_path};
use crate::failure::{Failure, Outcome};
use crate::json::{self, PathText, Text};
use crate::streams;
use crate::text;

/// Read, write and watch the files of a sandbox
#[derive(Subcommand)]
pub(crate) enum Command {
    /// List a folder
    Ls {
        #[command(flatten)]
        at: At,
        /// Show mode, size and time too
        #[arg(short = 'l', long)]
        long: bool,
        /// End each name with NUL and print it byte for byte; else what a terminal would obey is escaped
        #[arg(short = '0', long, conflicts_with_all = ["long", "json"])]
        null: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Print a file
    Cat {
        #[command(flatten)]
        at: At,
    },
    /// Write our stdin to a file, all or nothing
    Write {
        #[command(flatten)]
        at: At,
        /// The permission bits of a new file, in octal
        #[arg(long, value_parser = mode)]
        mode: Option<u32>,
        /// Make the folders above it
        #[arg(short = 'p', long)]
        parents: bool,
    },
    /// Make a folder, and those above it
    Mkdir {
        #[command(flatten)]
        at: At,
    },
    /// Rename, replacing a file that is there
    Mv {
        #[command(flatten)]
        at: At,
        /// The new path, in the same sandbox
        #[arg(value_name = "PATH")]
        to: OsString,
    },
    /// Remove a file, a link or an empty folder
    Rm {
        #[command(flatten)]
        at: At,
        /// Remove a folder with all that is in it
        #[arg(short = 'r', long)]
        recursive: bool,
    },
    /// Describe one entry; a link is described as a link
    Stat {
        #[command(flatten)]
        at: At,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Find files by name, by text, or by both
    Search {
        #[command(flatten)]
        at: At,
        /// A pattern for the name: `*` and `?` as in a shell
        #[arg(long, value_name = "PATTERN", required_unless_present = "text")]
        name: Option<String>,
        /// A text that a line of the file holds
        #[arg(long)]
        text: Option<String>,
        /// The most matches
        #[arg(long, value_name = "N", default_value_t = 1000)]
        limit: usize,
        /// End each match with NUL and print it byte for byte; else what a terminal would obey is escaped
        #[arg(short = '0', long, conflicts_with = "json")]
        null: bool,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Print the changes below a folder as they come, until interrupted
    Watch {
        #[command(flatten)]
        at: At,
        /// Print a JSON document per change
        #[arg(long)]
        json: bool,
    },
}

/// Where.
#[derive(clap::Args)]
pub(crate) struct At {
    #[command(flatten)]
    on: On,
    /// The sandbox and the path inside
    #[arg(value_name = "ID:PATH")]
    place: OsString,
}

impl At {
    /// Where no path means the default folder.
    async fn open_folder(&self) -> Result<(Files, Place)> {
        let (files, place) = self.open().await?;
        Ok((files, place.or_default_folder()))
    }

    async fn open(&self) -> Result<(Files, Place)> {
        let place = Place::required(&self.place)?;
        let sandbox = self.on.connect(&place.id).await?;
        Ok((of_sandbox(&sandbox)?, place))
    }
}

/// The files of a sandbox, or why there are none.
pub(crate) fn of_sandbox(sandbox: &AnySandbox) -> Result<Files> {
    sandbox.require(Capability::FilesRead)?;
    Ok(sandbox.files().expect("required above"))
}

#[derive(Serialize)]
struct Entries {
    entries: Vec<EntryDocument>,
}

#[derive(Serialize)]
struct EntryDocument {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    kind: &'static str,
    size: u64,
    mode: String,
    modified: Option<String>,
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_base64: Option<String>,
}

#[derive(Serialize)]
struct Matches {
    matches: Vec<MatchDocument>,
}

#[derive(Serialize)]
struct MatchDocument {
    #[serde(flatten)]
    path: PathText,
    line: Option<u64>,
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

#[derive(Serialize)]
struct Change {
    kind: &'static str,
    #[serde(flatten)]
    path: PathText,
}

pub(crate) async fn run(command: Command) -> Outcome {
    match command {
        Command::Ls { at, long, null, json } => {
            let (files, place) = at.open_folder().await?;
            let entries = files.list(place.path).await?;
            if json {
                json::print(&Entries { entries: entries.iter().map(EntryDocument::from).collect() })?;
            } else if long {
                describe(&entries)?;
            } else if null {
                print_records(entries.iter().map(|entry| entry.name.as_bytes().to_vec()))?;
            } else {
                print_lines(entries.iter().map(|entry| entry.name.to_string()))?;
            }
        }
        Command::Cat { at } => {
            let (files, place) = at.open().await?;
            cat(&files, &place.path).await?;
        }
        Command::Write { at, mode, parents } => {
            let (files, place) = at.open().await?;
            let content = streams::stdin().read_to_end().await?;
            let mut options = WriteOptions::default();
            options.mode = mode;
            options.parents = parents;
            files.write_with(place.path, content, options).await.map_err(|error| {
                let no_folder = error.kind() == ErrorKind::NotFound && error.hint().is_none() && !parents;
                if no_folder { error.with_hint("`-p` makes the folders above it") } else { error }
            })?;
        }
        Command::Mkdir { at } => {
            let (files, place) = at.open().await?;
            files.mkdir(place.path).await?;
        }
        Command::Mv { at, to } => {
            let from = Place::required(&at.place)?;
            let to = match Place::of(&to) {
                Some(place) if place.id == from.id => place.path,
                Some(place) => {
                    let message = format!("`{}` is another sandbox than `{}`", place.id, from.id);
                    return Err(Error::invalid_argument("PATH", message)
                        .with_hint("`capbox cp` copies between sandbox and machine")
                        .into());
                }
                None => sandbox_path(&to),
            };
            let (files, place) = at.open().await?;
            files.rename(place.path, to).await?;
        }
        Command::Rm { at, recursive } => {
            let (files, place) = at.open().await?;
            if recursive {
                files.remove_all(place.path).await?;
            } else {
                files.remove(place.path).await?;
            }
        }
        Command::Stat { at, json } => {
            let (files, place) = at.open_folder().await?;
            let entry = files.stat(place.path).await?;
            if json { json::print(&EntryDocument::from(&entry))? } else { describe(&[entry])? }
        }
        Command::Search { at, name, text, limit, null, json } => {
            let (files, place) = at.open_folder().await?;
            let mut query = SearchQuery::default().with_limit(limit);
            query.name = name;
            query.text = text;
            let matches = files.search(place.path, &query).await?;
            if json {
                json::print(&Matches { matches: matches.iter().map(MatchDocument::from).collect() })?;
            } else if null {
                print_records(matches.iter().map(found))?;
            } else {
                print_lines(matches.iter().map(shown))?;
            }
        }
        Command::Watch { at, json } => {
            let (files, place) = at.open_folder().await?;
            let mut changes = files.watch(place.path).await?;
            while let Some(change) = changes.next().await? {
                let kind = change.kind.as_str();
                if json {
                    json::print_line(&Change { kind, path: (&change.path).into() })?;
                } else {
                    print_lines([format!("{kind} {}", change.path)])?;
                }
            }
        }
    }
    Ok(0)
}

/// A file in pieces, so that any size fits.
async fn cat(files: &Files, path: &SandboxPath) -> Result<(), Failure> {
    const PIECE: u64 = 4 << 20;
    let mut stdout = streams::stdout();
    let mut offset = 0;
    loop {
        let bytes = files.read_range(path, ReadRange::new(offset, PIECE)).await?;
        stdout.write_all(&bytes).await?;
        offset += bytes.len() as u64;
        if (bytes.len() as u64) < PIECE {
            return Ok(());
        }
    }
}

/// A match as a line. Names and texts come from inside: nothing in them may begin a line or move the cursor, also
/// where the line goes through a pipe first.
fn shown(found: &Match) -> String {
    match &found.line {
        Some((number, text)) => {
            format!("{}:{number}:{}", found.path, text::harmless(&String::from_utf8_lossy(text)))
        }
        None => found.path.to_string(),
    }
}

/// A match byte for byte.
fn found(found: &Match) -> Vec<u8> {
    let mut record = found.path.as_bytes().to_vec();
    if let Some((number, text)) = &found.line {
        record.extend(format!(":{number}:").into_bytes());
        record.extend_from_slice(text);
    }
    record
}

fn print_lines(lines: impl IntoIterator<Item = String>) -> io::Result<()> {
    print_all(lines.into_iter().map(String::into_bytes), b'\n')
}

fn print_records(records: impl IntoIterator<Item = Vec<u8>>) -> io::Result<()> {
    print_all(records, 0)
}

fn print_all(parts: impl IntoIterator<Item = Vec<u8>>, end: u8) -> io::Result<()> {
    let mut all = Vec::new();
    for part in parts {
        all.extend(part);
        all.push(end);
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(&all)?;
    stdout.flush()
}

fn describe(entries: &[Entry]) -> io::Result<()> {
    let rows: Vec<_> = entries
        .iter()
        .map(|entry| {
            let name = match &entry.target {
                Some(target) => format!("{} -> {target}", entry.name),
                None => entry.name.to_string(),
            };
            [
                entry.kind.as_str().to_owned(),
                octal(entry.mode),
                if entry.kind == EntryKind::File { entry.size.to_string() } else { "-".to_owned() },
                entry.modified.map_or_else(|| "-".to_owned(), text::time),
                name,
            ]
        })
        .collect();
    text::columns(&["KIND", "MODE", "SIZE", "MODIFIED", "NAME"], &rows)
}

fn octal(mode: u32) -> String {
    format!("{:04o}", mode & 0o7777)
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("`{text}` is not a mode in octal, such as `755`")),
    }
}

impl From<&Entry> for EntryDocument {
    fn from(entry: &Entry) -> Self {
        let Text { text: name, base64: name_base64 } = Text::of(entry.name.as_bytes());
        let target = entry.target.as_ref().map(|target| Text::of(target.as_bytes()));
        let (target, target_base64) = target.map_or((None, None), |t| (Some(t.text), t.base64));
        Self {
            name,
            name_base64,
            kind: entry.kind.as_str(),
            size: entry.size,
            mode: octal(entry.mode),
            modified: json::time(entry.modified),
            target,
            target_base64,
        }
    }
}

impl From<&Match> for MatchDocument {
    fn from(found: &Match) -> Self {
        let line = found.line.as_ref().map(|(number, text)| (*number, Text::of(text)));
        let path = (&found.path).into();
        match line {
            Some((number, Text { text, base64 })) => {
                Self { path, line: Some(number), text: Some(text), base64 }
            }
            None => Self { path, line: None, text: None, base64: None },
        }
    }
}
