//! Paths inside a sandbox.

use std::fmt;

use crate::error::{Error, Result};

/// A path inside a sandbox: bytes without NUL, exactly as the sandbox's file system has them.
///
/// It is not a `Path` of this machine: the separator is always `/`, and a name that is not UTF-8 survives the
/// round trip. Relative paths start at the sandbox's default folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxPath(Vec<u8>);

impl SandboxPath {
    /// The path with exactly these bytes.
    pub fn from_bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, where it is UTF-8.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// True where it starts at the root.
    pub fn is_absolute(&self) -> bool {
        self.0.first() == Some(&b'/')
    }

    /// This path with `name` below it.
    #[must_use]
    pub fn join(&self, name: impl Into<Self>) -> Self {
        let name = name.into();
        if name.is_absolute() || self.0.is_empty() {
            return name;
        }
        let mut bytes = self.0.clone();
        if bytes.last() != Some(&b'/') {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(&name.0);
        Self(bytes)
    }

    /// The last component; empty for the root.
    pub fn file_name(&self) -> &[u8] {
        let trimmed = trim_slashes(&self.0);
        trimmed.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// The path without its last component.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let trimmed = trim_slashes(&self.0);
        match trimmed.iter().rposition(|b| *b == b'/') {
            Some(0) if trimmed.len() > 1 => Some(Self(b"/".to_vec())),
            Some(0) | None => None,
            Some(at) => Some(Self(trimmed[..at].to_vec())),
        }
    }

    /// Refuse what no file system takes.
    pub fn check(&self) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::invalid_argument("path", "is empty"));
        }
        if self.0.contains(&0) {
            return Err(Error::invalid_argument("path", format!("`{self}` holds a NUL byte")));
        }
        Ok(())
    }
}

fn trim_slashes(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != b'/').map_or(bytes.len().min(1), |at| at + 1);
    &bytes[..end]
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() { write!(f, "{}", c.escape_default())? } else { write!(f, "{c}")? }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl From<&str> for SandboxPath {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for SandboxPath {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl From<&String> for SandboxPath {
    fn from(text: &String) -> Self {
        Self(text.clone().into_bytes())
    }
}

impl From<&[u8]> for SandboxPath {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for SandboxPath {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&Self> for SandboxPath {
    fn from(path: &Self) -> Self {
        path.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        let path = |s: &str| SandboxPath::from(s);
        assert_eq!(path("/a/b").parent(), Some(path("/a")));
        assert_eq!(path("/a").parent(), Some(path("/")));
        assert_eq!(path("/").parent(), None);
        assert_eq!(path("a").parent(), None);
        assert_eq!(path("/a/b/").file_name(), b"b");
        assert_eq!(path("/").file_name(), b"");
        assert_eq!(path("/a").join("b"), path("/a/b"));
        assert_eq!(path("/").join("b"), path("/b"));
        assert_eq!(path("/a").join("/b"), path("/b"));
        assert_eq!(SandboxPath::from_bytes(*b"a\n\xff").to_string(), "a\\n\\xff");
        assert!(path("").check().is_err());
        assert!(path("a\0b").check().is_err());
    }
}
