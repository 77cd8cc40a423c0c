//! What is executed: a program or a shell text, with its environment and folder.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use crate::error::{Error, Result};

/// The most output that a buffered exec keeps, per stream, in bytes, unless it is asked for more.
pub const DEFAULT_MAX_OUTPUT: usize = 16 << 20;

/// What to execute. A string is run by `sh -c`; an argv is run as it is. The same on every provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A text for `sh -c`.
    Shell(OsString),
    /// A program, looked up in the `PATH` of the command, and its arguments.
    Argv(Vec<OsString>),
}

impl Program {
    /// The argv that is executed.
    pub fn argv(&self) -> Vec<OsString> {
        match self {
            Self::Shell(text) => vec!["sh".into(), "-c".into(), text.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(text) => f.write_str(&text.to_string_lossy()),
            Self::Argv(argv) => {
                for (i, arg) in argv.iter().enumerate() {
                    let space = if i == 0 { "" } else { " " };
                    write!(f, "{space}{}", arg.to_string_lossy())?;
                }
                Ok(())
            }
        }
    }
}

impl From<&str> for Program {
    fn from(text: &str) -> Self {
        Self::Shell(text.into())
    }
}

impl From<String> for Program {
    fn from(text: String) -> Self {
        Self::Shell(text.into())
    }
}

impl<S: AsRef<OsStr>> From<Vec<S>> for Program {
    fn from(argv: Vec<S>) -> Self {
        Self::from(argv.as_slice())
    }
}

impl<S: AsRef<OsStr>> From<&[S]> for Program {
    fn from(argv: &[S]) -> Self {
        Self::Argv(argv.iter().map(|a| a.as_ref().to_owned()).collect())
    }
}

impl<S: AsRef<OsStr>, const N: usize> From<[S; N]> for Program {
    fn from(argv: [S; N]) -> Self {
        Self::from(argv.as_slice())
    }
}

/// Environment variables. `Debug` shows the names only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, OsString>);

impl Env {
    /// No variables.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Set one.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<OsString>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(name).map(OsString::as_os_str)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &OsStr)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_os_str()))
    }

    /// True where there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// This environment with the variables of `over` merged over it.
    #[must_use]
    pub fn merged(mut self, over: &Self) -> Self {
        self.0.extend(over.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        self
    }

    /// Refuse names that no program can get, and, for a shell text, names that the shell would drop.
    pub(crate) fn check(&self, program: Option<&Program>) -> Result<()> {
        for (name, value) in &self.0 {
            let shown: String = name.chars().flat_map(char::escape_debug).collect();
            let wrong =
                |what: &str| Err(Error::invalid_argument("env", format!("the name `{shown}` {what}")));
            if name.is_empty() {
                return wrong("is empty");
            }
            if name.contains(['=', '\0', '\n']) {
                return wrong("holds `=`, a NUL or a line feed");
            }
            if value.as_encoded_bytes().contains(&0) {
                return Err(Error::invalid_argument("env", format!("the value of `{shown}` holds a NUL")));
            }
            if matches!(program, Some(Program::Shell(_))) && !is_shell_name(name) {
                return wrong(
                    "would be dropped by the shell; give the command as an argv, or use letters, digits and `_`",
                );
            }
        }
        Ok(())
    }
}

fn is_shell_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl<N: Into<String>, V: Into<OsString>, const C: usize> From<[(N, V); C]> for Env {
    fn from(pairs: [(N, V); C]) -> Self {
        pairs.into_iter().collect()
    }
}

/// A command as a provider gets it: checked, and complete but for the option rows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Command {
    /// What to execute.
    pub program: Program,
    /// The most output to keep, per stream, in bytes, for a buffered exec.
    pub max_output: usize,
}

impl Command {
    /// A command.
    pub fn new(program: impl Into<Program>) -> Self {
        Self { program: program.into(), max_output: DEFAULT_MAX_OUTPUT }
    }

    /// Refuse what cannot be executed anywhere.
    pub fn check(&self) -> Result<()> {
        match &self.program {
            Program::Shell(text) if text.is_empty() => {
                return Err(Error::invalid_argument("command", "is empty"));
            }
            Program::Argv(argv) if argv.first().is_none_or(|program| program.is_empty()) => {
                return Err(Error::invalid_argument("command", "names no program"));
            }
            Program::Shell(_) | Program::Argv(_) => {}
        }
        let nul = |text: &OsString| text.as_encoded_bytes().contains(&0);
        if self.program.argv().iter().any(nul) {
            return Err(Error::invalid_argument("command", "holds a NUL byte"));
        }
        if self.max_output == 0 {
            return Err(Error::invalid_argument("max_output", "must be greater than zero"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: impl Into<Program>, name: &str, value: &str) -> Result<()> {
        Env::from([(name, value)]).check(Some(&program.into()))
    }

    /// B118, B119, B120: no name injects, none is dropped, none smuggles a second variable.
    #[test]
    fn env_names() {
        assert!(check("echo", "A", "x\nexport EVIL=1").is_ok());
        for name in ["", "A=B", "A\nB", "A\0B", "A;touch /tmp/pwn;B", "MY-KEY", "1A"] {
            assert!(check("echo", name, "x").is_err(), "{name:?}");
        }
        assert!(check(["printenv"], "MY-KEY", "x").is_ok());
        assert!(check(["printenv"], "A=B", "x").is_err());
        assert!(check(["printenv"], "A", "x\0y").is_err());
    }

    #[test]
    fn commands() {
        assert!(Command::new("").check().is_err());
        assert!(Command::new(Vec::<String>::new()).check().is_err());
        assert!(Command::new([""]).check().is_err());
        assert!(Command::new(["a\0b"]).check().is_err());
        assert_eq!(Program::from("a b").argv(), ["sh", "-c", "a b"]);
        assert_eq!(Program::from(["a b"]).argv(), ["a b"]);
    }

    #[test]
    fn debug_hides_values() {
        let env = Env::from([("TOKEN", "hunter2")]);
        assert_eq!(format!("{env:?}"), r#"{"TOKEN"}"#);
    }
}
