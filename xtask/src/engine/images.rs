//! The images that tests use, made of this machine's own files: programs with the libraries that `ldd` names.
//!
//! | image | what is in it |
//! |---|---|
//! | `capbox-test/tools` | a shell, the usual tools, Python |
//! | `capbox-test/busybox` | one static `BusyBox` and its links: no glibc, no `bash` |
//! | `capbox-test/user` | the tools, with a user, a folder and an environment of its own |
//! | `capbox-test/static` | one static program, `/bin/sleep`, and nothing else: no shell, no `/tmp`, no `/etc` |
//!
//! Beside them, as files: `archive.tar` (`capbox-test/archive`, which is not loaded) and `context`, a folder to build
//! from.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use tar::{EntryType, Header, HeaderMode};

use crate::tools::{Result, output};

/// The image for most tests.
pub(crate) const TOOLS: &str = "capbox-test/tools";
const BUSYBOX: &str = "capbox-test/busybox";
const USER: &str = "capbox-test/user";
const STATIC: &str = "capbox-test/static";
const ARCHIVE: &str = "capbox-test/archive";

/// Where programs are looked for: what the system's packages brought, not what else is in `PATH`.
const PATH: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// Programs without which tests cannot run.
const NEEDED: &[&str] = &["bash", "sh", "cat", "find", "grep", "ls", "sed", "sleep", "tar", "python3"];

/// Programs that are taken where they are.
const TAKEN: &str = "\
[ arch awk base64 basename bunzip2 bzip2 cat chgrp chmod chown cksum cmp comm cp cut date dd df diff dir dirname du \
echo env expand expr factor false file find flock fmt fold free getent getopt gawk grep egrep fgrep gunzip gzip head \
hostname iconv id install ip join kill ldd less link ln locale logname ls mawk md5sum mkdir mkfifo mknod mktemp more \
mount mv nc nice nl nohup nproc numfmt od paste perl pgrep pidof pkill printenv printf prlimit ps pwd readlink \
realpath rev rm rmdir script sed seq setpriv setsid sha1sum sha256sum sha512sum shuf sleep sort split stat stdbuf \
stty sum sync tac tail tar taskset tee test timeout top touch tput tr true truncate tsort tty umount uname uniq \
unlink unshare users vdir wc which who whoami xargs xz yes zcat";

/// Parts of Python's library that no test needs.
const LEFT_OUT: &[&str] = &[
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
    "turtledemo",
];

/// Make all images at the engine `host`, and the files in `files`.
pub(crate) fn make(host: &str, files: &Path) -> Result {
    let docker = Docker { host };
    let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    docker.import(TOOLS, &[path, "CMD [\"bash\"]"], tools)?;
    let user = ["USER 1000:1000", "WORKDIR /srv/work", "ENV GREETING=hello", "ENTRYPOINT [\"sh\", \"-c\"]"];
    docker.commit(TOOLS, USER, &user)?;
    docker.import(BUSYBOX, &["CMD [\"sh\"]"], busybox)?;
    docker.import(STATIC, &["CMD [\"/bin/sleep\", \"1000\"]"], only_sleep)?;

    fs::create_dir(files).map_err(|e| format!("make `{}`: {e}", files.display()))?;
    docker.run(&["tag", BUSYBOX, ARCHIVE])?;
    docker.run(&["save", "--output", &files.join("archive.tar").display().to_string(), ARCHIVE])?;
    docker.run(&["rmi", ARCHIVE])?;
    context(&files.join("context")).map_err(|e| format!("write a folder to build from: {e}"))
}

/// Remove the images again.
pub(crate) fn remove(host: &str) {
    let mut docker = Command::new("docker");
    docker.args(["--host", host, "rmi", "--force", USER, TOOLS, BUSYBOX, STATIC]);
    docker.stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
}

/// A folder to build an image from: a layer on an image that is there, a file, and one that is to be left out.
fn context(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder)?;
    fs::write(
        folder.join("Dockerfile"),
        format!("FROM {BUSYBOX}\nCOPY . /built\nRUN echo layer > /built/layer\n"),
    )?;
    fs::write(folder.join(".dockerignore"), "left-out\n")?;
    fs::write(folder.join("greeting"), "hello\n")?;
    fs::write(folder.join("left-out"), "not for the image\n")
}

/// A root file system on its way to the engine. Everything in it is root's, and of one date.
type Root = tar::Builder<ChildStdin>;

fn tools(root: &mut Root) -> Result {
    if let Some(missing) = NEEDED.iter().find(|program| found(program).is_none()) {
        return Err(format!("there is no `{missing}` here to put into an image"));
    }
    let programs = NEEDED.iter().copied().chain(TAKEN.split_whitespace());
    let mut files: BTreeSet<PathBuf> = programs.filter_map(found).collect();
    for folder in ["/usr/lib/locale/C.utf8", "/lib/terminfo", "/usr/lib/terminfo"] {
        collect(Path::new(folder), &mut files).ok();
    }
    let python = python_library()?;
    collect(&python, &mut files).map_err(|e| format!("read `{}`: {e}", python.display()))?;
    files.extend(libraries(&files)?);
    let written = system(root, "bash").and_then(|()| add_all(root, &files));
    written.map_err(|e| format!("write an image: {e}"))
}

fn busybox(root: &mut Root) -> Result {
    let program = static_busybox()?;
    let list = output(Command::new(&program).arg("--list"))?;
    let mut write = || {
        system(root, "sh")?;
        root.append_path_with_name(&program, "bin/busybox")?;
        for applet in list.lines().filter(|applet| *applet != "busybox") {
            add_link(root, &Path::new("bin").join(applet), Path::new("busybox"))?;
        }
        Ok::<_, io::Error>(())
    };
    write().map_err(|e| format!("write an image: {e}"))
}

/// `BusyBox` is what it is called.
fn only_sleep(root: &mut Root) -> Result {
    let program = static_busybox()?;
    root.append_path_with_name(program, "bin/sleep").map_err(|e| format!("write an image: {e}"))
}

fn static_busybox() -> Result<PathBuf> {
    let program = found("busybox").ok_or("there is no `busybox` here to put into an image")?;
    if libraries(&BTreeSet::from([program.clone()]))?.is_empty() {
        return Ok(program);
    }
    Err(format!("`{}` is not static: install `busybox-static`", program.display()))
}

/// What every system has beside its programs.
fn system(root: &mut Root, shell: &str) -> io::Result<()> {
    for folder in ["dev", "etc", "home", "proc", "root", "srv", "sys", "var"] {
        add_folder(root, folder, 0o755)?;
    }
    for folder in ["home/user", "srv/work", "tmp", "var/tmp"] {
        add_folder(root, folder, 0o1777)?;
    }
    let passwd = format!(
        "root:x:0:0:root:/root:/bin/{shell}\nuser:x:1000:1000:user:/home/user:/bin/{shell}\n\
         nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    );
    add_text(root, "etc/passwd", &passwd)?;
    add_text(root, "etc/group", "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n")?;
    add_text(root, "etc/os-release", "ID=capbox-test\nPRETTY_NAME=\"capbox test image\"\n")
}

/// Add each file at the place where it is here. Links that lead to a folder on the way (`/bin`, `/lib`) are added as
/// such; a link to a file becomes what it leads to.
fn add_all(root: &mut Root, files: &BTreeSet<PathBuf>) -> io::Result<()> {
    for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
        if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
            add_link(root, Path::new(name), &target)?;
        }
    }
    let mut added = BTreeSet::new();
    for file in files {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { continue };
        let place = folder.canonicalize()?.join(name);
        if file.exists() && added.insert(place.clone()) {
            root.append_path_with_name(file, place.strip_prefix("/").expect("canonical"))?;
        }
    }
    Ok(())
}

fn add_folder(root: &mut Root, path: &str, mode: u32) -> io::Result<()> {
    let mut header = header(EntryType::Directory, mode);
    root.append_data(&mut header, path, io::empty())
}

fn add_text(root: &mut Root, path: &str, text: &str) -> io::Result<()> {
    let mut header = header(EntryType::Regular, 0o644);
    header.set_size(text.len() as u64);
    root.append_data(&mut header, path, text.as_bytes())
}

fn add_link(root: &mut Root, path: &Path, target: &Path) -> io::Result<()> {
    root.append_link(&mut header(EntryType::Symlink, 0o777), path, target)
}

fn header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}

/// The program of this name that the system brought.
fn found(program: &str) -> Option<PathBuf> {
    PATH.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.is_file())
}

fn python_library() -> Result<PathBuf> {
    let python = found("python3").ok_or("there is no `python3` here")?;
    let ask = ["-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"];
    Ok(PathBuf::from(output(Command::new(python).args(ask))?.trim_end()))
}

/// All files and links below `folder`.
fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            files.insert(entry.path());
        } else if !LEFT_OUT.iter().any(|name| entry.file_name() == *name) {
            collect(&entry.path(), files)?;
        }
    }
    Ok(())
}

/// The libraries that the programs and modules among `files` load.
fn libraries(files: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>> {
    let loads = |file: &&PathBuf| {
        let mut start = [0; 4];
        let read = |mut file: fs::File| io::Read::read_exact(&mut file, &mut start);
        fs::File::open(file).and_then(read).is_ok() && start == *b"\x7fELF"
    };
    let mut ldd = Command::new("ldd");
    ldd.args(files.iter().filter(loads)).env("LC_ALL", "C").stderr(Stdio::null());
    let printed = ldd.output().map_err(|e| format!("start `ldd`: {e}"))?.stdout;
    // `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)`, each after a tab.
    let printed = String::from_utf8_lossy(&printed);
    let paths =
        printed.lines().filter_map(|line| line.strip_prefix('\t')?.rsplit_once(" (")).map(|(line, _)| {
            let path = line.rsplit_once("=> ").map_or(line, |(_, path)| path);
            PathBuf::from(path)
        });
    Ok(paths.filter(|path| path.is_absolute()).collect())
}

/// The client's program, which every machine with an engine of its own has.
struct Docker<'a> {
    host: &'a str,
}

impl Docker<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.args(["--host", self.host]).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Result<String> {
        Ok(output(&mut self.command(args))?.trim_end().to_owned())
    }

    /// Make `image` of what `fill` writes.
    fn import(&self, image: &str, changes: &[&str], fill: fn(&mut Root) -> Result) -> Result {
        let changes: Vec<&str> = changes.iter().flat_map(|change| ["--change", *change]).collect();
        let mut import = self.command(&[&["import"], &changes[..], &["-", image]].concat());
        let mut import = import
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| format!("start `docker import`: {e}"))?;
        let mut root = tar::Builder::new(import.stdin.take().expect("piped"));
        root.mode(HeaderMode::Deterministic);
        let filled =
            fill(&mut root).and_then(|()| root.into_inner().map_err(|e| format!("write an image: {e}")));
        let filled = filled.map(drop); // which is the end of what it reads
        let imported = import.wait().map_err(|e| format!("wait for `docker import`: {e}"))?;
        filled?;
        if imported.success() { Ok(()) } else { Err(format!("`docker import`: {imported}")) }
    }

    /// Make `image` of another, with other settings.
    fn commit(&self, from: &str, image: &str, changes: &[&str]) -> Result {
        let container = self.run(&["create", from])?;
        let changes: Vec<&str> = changes.iter().flat_map(|change| ["--change", *change]).collect();
        let committed = self.run(&[&["commit"], &changes[..], &[&container, image]].concat());
        self.run(&["rm", &container])?;
        committed.map(drop)
    }
}
