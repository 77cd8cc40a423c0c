//! Constant shell scripts, with values as positional parameters: no value ever becomes shell text.
//!
//! The scripts need a POSIX shell and small tools that `busybox` has too. What they print comes out of the sandbox
//! and is not to be trusted: it is parsed strictly, and bounded.

use std::borrow::Cow;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::api::{ExitStatus, Output, Sandbox};
use crate::capability::flags::OutputBytes;
use crate::error::{Error, ErrorKind, Result};
use crate::provider::Table;
use crate::spec::{Program, SandboxPath};

/// What comes before each script: messages in English, and names that are bytes.
const PRELUDE: &str = "LC_ALL=C; export LC_ALL\n";

/// Prints the bytes of the file `$1`: all of them, or from byte `$3` of its block `$2` on, at most `$4`. Bytes count
/// from 1, as in `tail`; blocks are [`BLOCK`] bytes long and count from 0, and `dd` does not read those that it skips.
pub(super) const READ: &str = r#"
[ -d "$1" ] && exit 64
[ -e "$1" ] && [ ! -f "$1" ] && exit 65
{ [ $# = 1 ] || [ ! -r "$1" ]; } && exec cat "$1"
from() { dd if="$1" bs=65536 skip="$2" 2>/dev/null | tail -c "+$3" 2>/dev/null; }
if [ "$4" ]; then from "$@" | head -c "$4"; else from "$@"; fi
"#;

/// See [`READ`].
pub(super) const BLOCK: u64 = 1 << 16;

/// Replaces the file `$1` by standard input if that is `$3` bytes long; a new file gets the mode `$2`; the folder
/// `$4`, if not empty, is made first.
pub(super) const WRITE: &str = r#"
p=$1
if [ "$4" ]; then mkdir -p "$4" || exit; fi
if [ -L "$p" ]; then
    p=$(readlink -f "$p" && echo x) || { cat "$1" >/dev/null; exit 1; }
    p=${p%?x}
fi
[ -d "$p" ] && exit 64
if [ -e "$p" ]; then
    [ -f "$p" ] || exit 65
    [ -w "$p" ] || exit 66
fi
t=$(mktemp "${p%/*}/.capbox-XXXXXX") || exit
trap 'rm -f "$t"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$t" || exit
[ "$(wc -c <"$t")" -eq "$3" ] || exit 68
m=$2
if [ -e "$p" ]; then
    chown "$(stat -c %u:%g "$p")" "$t" 2>/dev/null
    m=$(stat -c %a "$p") || exit
fi
chmod "$m" "$t" && mv -f "$t" "$p"
"#;

/// What the exit codes of the scripts mean. Any other failure is told by the message of the tool that failed.
const CODES: &[(i32, ErrorKind, &str)] = &[
    (64, ErrorKind::IsADirectory, "is a folder"),
    (65, ErrorKind::NotARegularFile, "is not a regular file"),
    (66, ErrorKind::PermissionDenied, "permission denied"),
    (67, ErrorKind::AlreadyExists, "is there already"),
    (68, ErrorKind::Conflict, "the new content did not arrive whole; what was there before is unchanged"),
    (69, ErrorKind::NotADirectory, "is not a folder"),
];

/// How the message of a tool ends.
const MESSAGES: &[(&str, ErrorKind)] = &[
    ("No such file or directory", ErrorKind::NotFound),
    ("Not a directory", ErrorKind::NotADirectory),
    ("Is a directory", ErrorKind::IsADirectory),
    ("Permission denied", ErrorKind::PermissionDenied),
    ("Operation not permitted", ErrorKind::PermissionDenied),
    ("Read-only file system", ErrorKind::PermissionDenied),
    ("No space left on device", ErrorKind::StorageFull),
    ("Disk quota exceeded", ErrorKind::StorageFull),
    ("File exists", ErrorKind::AlreadyExists),
    ("Directory not empty", ErrorKind::Conflict),
    ("Text file busy", ErrorKind::Conflict),
    ("Too many levels of symbolic links", ErrorKind::Conflict),
    ("File name too long", ErrorKind::InvalidArgument),
    ("Invalid argument", ErrorKind::InvalidArgument),
];

/// `script` with `args` as `$1`, `$2`, …
pub(super) fn program(script: &str, args: impl IntoIterator<Item = OsString>) -> Program {
    let words = ["sh".into(), "-c".into(), format!("{PRELUDE}{script}").into(), "sh".into()];
    Program::Argv(words.into_iter().chain(args).collect())
}

/// A path as an argument that no tool takes for an option, or for something special like `-`.
pub(super) fn path(path: &SandboxPath) -> Result<OsString> {
    path.check()?;
    if path.is_absolute() { word(path.as_bytes()) } else { word(&[b"./", path.as_bytes()].concat()) }
}

/// Bytes as an argument.
#[cfg(unix)]
#[allow(clippy::unnecessary_wraps, reason = "fallible elsewhere")]
pub(super) fn word(bytes: &[u8]) -> Result<OsString> {
    use std::os::unix::ffi::OsStrExt;
    Ok(std::ffi::OsStr::from_bytes(bytes).to_owned())
}

/// Bytes as an argument: on this system only text can be one.
#[cfg(not(unix))]
pub(super) fn word(bytes: &[u8]) -> Result<OsString> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.into()),
        Err(_) => Err(Error::invalid_argument("path", "a name that is not UTF-8 cannot be passed from here")),
    }
}

/// A text that nobody guesses: 32 hexadecimal digits.
pub(super) fn token() -> String {
    let half = || RandomState::new().hash_one(());
    format!("{:016x}{:016x}", half(), half())
}

/// How bytes come out of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As they are.
    Exact,
    /// As base64, since output is not exact.
    Base64,
}

impl Encoding {
    pub(super) fn of<P: Table>(sandbox: &Sandbox<P>) -> Self {
        match sandbox.capabilities().flags().output_bytes {
            OutputBytes::Exact => Self::Exact,
            OutputBytes::Lossy => Self::Base64,
        }
    }

    /// `script`, printing in this encoding and exiting as it did.
    pub(super) fn program(self, script: &'static str, args: impl IntoIterator<Item = OsString>) -> Program {
        let script: Cow<'static, str> = match self {
            Self::Exact => script.into(),
            // The exit code goes around `base64`, by descriptor 4.
            Self::Base64 => format!(
                "exec 3>&1\n\
                 s=$( {{ {{ ({script}) 3>&- 4>&-; echo $? >&4; }} | {{ base64 >&3 || echo x >&4; }}; }} 4>&1 )\n\
                 case $s in *x*) exit 127;; esac\n\
                 exit \"$s\""
            )
            .into(),
        };
        program(&script, args)
    }

    /// The most output for `bytes` bytes, with room for a message.
    pub(super) fn limit(self, bytes: usize) -> usize {
        let encoded = match self {
            Self::Exact => bytes,
            Self::Base64 => bytes.saturating_add(bytes / 2),
        };
        encoded.saturating_add(4096)
    }

    fn decode(self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        match self {
            Self::Exact => Ok(bytes),
            Self::Base64 => {
                let mut decoder = Decoder::new(self);
                let bytes = decoder.push(&bytes)?;
                decoder.finish()?;
                Ok(bytes)
            }
        }
    }
}

/// Takes an encoded stream apart, chunk by chunk.
pub(super) struct Decoder {
    encoding: Encoding,
    carry: Vec<u8>,
    /// Padding has been seen: nothing may follow.
    ended: bool,
}

impl Decoder {
    pub(super) fn new(encoding: Encoding) -> Self {
        Self { encoding, carry: Vec::new(), ended: false }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<Vec<u8>> {
        if self.encoding == Encoding::Exact {
            return Ok(chunk.to_vec());
        }
        let before = self.carry.len();
        self.carry.extend(chunk.iter().filter(|b| !matches!(b, b'\n' | b'\r')));
        if self.ended && self.carry.len() > before {
            return Err(nonsense("goes on after its end"));
        }
        let rest = self.carry.split_off(self.carry.len() / 4 * 4);
        let whole = std::mem::replace(&mut self.carry, rest);
        self.ended |= whole.last() == Some(&b'=');
        BASE64.decode(whole).map_err(|_| nonsense("is not base64"))
    }

    pub(super) fn finish(self) -> Result<()> {
        if self.carry.is_empty() { Ok(()) } else { Err(nonsense("is cut short")) }
    }
}

/// The sandbox's tools answered something else than they should.
pub(super) fn nonsense(what: &str) -> Error {
    Error::new(ErrorKind::Provider, format!("what the tools of the sandbox printed {what}"))
}

/// What a script about `path` printed, or why it failed.
pub(super) fn printed(output: Output, encoding: Encoding, path: &SandboxPath) -> Result<Vec<u8>> {
    succeeded(&output, path)?;
    if output.stdout.truncated() {
        return Err(nonsense("is longer than it can be"));
    }
    encoding.decode(output.stdout.into_bytes())
}

/// Why a script about `path` failed, if it did.
pub(super) fn succeeded(output: &Output, path: &SandboxPath) -> Result<()> {
    // Where the streams are merged, the message came by the other one.
    let said = if output.stderr.bytes().is_empty() { output.stdout.bytes() } else { output.stderr.bytes() };
    match output.status {
        ExitStatus::Exited(0) => Ok(()),
        status => Err(failure(status, said, path)),
    }
}

/// What it means that a script about `path` ended with `status`, its tools having said `said`.
pub(super) fn failure(status: ExitStatus, said: &[u8], path: &SandboxPath) -> Error {
    let text = String::from_utf8_lossy(said);
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    let code = match status {
        ExitStatus::Exited(code) => code,
        ExitStatus::SandboxGone => {
            return Error::new(ErrorKind::SandboxGone, format!("`{path}`: the sandbox ended meanwhile"));
        }
        _ => return Error::new(ErrorKind::Provider, format!("`{path}`: the shell {status}")),
    };
    if let Some((_, kind, text)) = CODES.iter().find(|(known, ..)| *known == code) {
        return Error::new(*kind, format!("`{path}`: {text}"));
    }
    if let Some((text, kind)) = MESSAGES.iter().find(|(text, _)| last.ends_with(text)) {
        return Error::new(*kind, format!("`{path}`: {}", text.to_lowercase()));
    }
    let shown: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
    if code == 126 || code == 127 {
        return Error::new(ErrorKind::ProgramNotFound, format!("`{path}`: a tool is missing: {shown}"))
            .with_hint("use an image with a shell and the usual small tools; BusyBox is enough");
    }
    Error::new(ErrorKind::Provider, format!("`{path}`: the shell {status}: {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<u8>> {
        let mut decoder = Decoder::new(Encoding::Base64);
        let mut all = Vec::new();
        for chunk in chunks {
            all.extend(decoder.push(chunk)?);
        }
        decoder.finish()?;
        Ok(all)
    }

    #[test]
    fn base64_in_chunks() {
        assert_eq!(decode(&[b"aGV", b"sbG8=\n"]).unwrap(), b"hello");
        assert_eq!(decode(&[b"aGVsbG8=", b"\r\n"]).unwrap(), b"hello");
        assert_eq!(decode(&[]).unwrap(), b"");
        for wrong in [&b"aGVsbG8"[..], b"aGVsbG8=aGVs", b"a", b"hi there", b"aGVs\0aGV"] {
            assert!(decode(&[wrong]).is_err(), "{wrong:?}");
        }
        assert!(decode(&[b"aGVsbG8=", b"aGVs"]).is_err());
    }

    #[test]
    fn failures() {
        let kind = |code, said: &str| failure(ExitStatus::Exited(code), said.as_bytes(), &"/x".into()).kind();
        assert_eq!(kind(65, ""), ErrorKind::NotARegularFile);
        assert_eq!(kind(1, "cat: /x: No such file or directory\n"), ErrorKind::NotFound);
        assert_eq!(kind(1, "cat: /No space left on device: Is a directory\n"), ErrorKind::IsADirectory);
        assert_eq!(kind(127, "sh: 3: stat: not found"), ErrorKind::ProgramNotFound);
        assert_eq!(kind(1, "what?"), ErrorKind::Provider);
        let killed = failure(ExitStatus::Signaled(9), b"", &"/x".into());
        assert_eq!(killed.message(), "`/x`: the shell ended by signal 9");
    }

    #[test]
    fn paths_are_no_options() {
        assert_eq!(path(&"-rf".into()).unwrap(), "./-rf");
        assert_eq!(path(&"/-rf".into()).unwrap(), "/-rf");
        assert!(path(&"".into()).is_err());
    }
}
