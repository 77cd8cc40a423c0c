//! `Wrapped` and its options, `RunByStreaming`, `ExitCodeByFile`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use capbox_core::provider::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::providers::*;

everywhere! { [Bare Piped]: text_is_exact folders_and_programs }
everywhere! { [Bare Piped Codeless]: any_text_is_exact exit_codes time_is_up }
everywhere! { [Piped]: output_is_collected }
everywhere! { [Codeless]: exit_codes_are_not_made_up }

/// B115, B116: the classic texts.
async fn text_is_exact<P: Whole>(place: &Place<P>) {
    fs::create_dir(place.dir.join("my dir")).unwrap();
    let texts = [
        "hello world",
        "'",
        "\"",
        "$HOME",
        "`id`",
        "a$b\\`c",
        "a\nb",
        "%s%n",
        "end\n",
        "\n",
        "",
        "-n",
        "é☕",
        "x=y",
    ];
    for text in texts {
        let command =
            place.sandbox.exec("printf '%s|' \"$X\"; pwd -P").env("X", text).cwd("my dir").await.unwrap();
        let expected = format!("{text}|{}\n", fs::canonicalize(place.dir.join("my dir")).unwrap().display());
        assert_eq!(command.stdout.text(), expected);
        let direct = place.sandbox.exec(["printf", "%s", text]).env("X", text).await.unwrap();
        assert_eq!(direct.stdout.text(), text);
    }
    // B119: a name that a shell would drop reaches a program that is not one.
    for name in ["MY-KEY", "-X", "1A", "a.b", "é", " "] {
        let command = place.sandbox.exec(["env", "-0"]).env(name, "value").cwd("my dir").await.unwrap();
        let expected = format!("{name}=value");
        assert!(command.stdout.bytes().split(|b| *b == 0).any(|var| var == expected.as_bytes()), "{name}");
    }
}

fn bytes() -> impl Strategy<Value = OsString> {
    let byte = prop_oneof![1_u8..=255, prop::sample::select(b"\n '\"$`\\-=%*".to_vec())];
    proptest::collection::vec(byte, 0..12).prop_map(OsString::from_vec)
}

fn name() -> impl Strategy<Value = String> {
    "[^=\0\n]{1,8}".prop_filter("not one that programs listen to", |name| {
        !matches!(name.as_str(), "_" | "PWD" | "OLDPWD" | "PATH" | "SHLVL")
    })
}

/// B115, B116, B120: whatever the bytes are, a program gets exactly them, in any combination of options.
async fn any_text_is_exact<P: Runs>(place: &Place<P>) {
    let args = proptest::collection::vec(bytes(), 0..4);
    let vars = proptest::collection::btree_map(name(), bytes(), 0..4);
    let cases = (args, vars, proptest::option::of(bytes()), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let runtime = tokio::runtime::Handle::current();
    let (sandbox, dir) = (place.sandbox.clone(), place.dir.clone());
    let run = move || {
        runner.run(&cases, |(args, vars, cwd, timed)| {
            // The arguments, the folder and the variables, each ended by NUL.
            let mut program: Vec<OsString> =
                ["sh", "-c", r#"printf '%s\0' "$@" "$(pwd -P; echo x)" --; exec env -0"#, "sh"]
                    .map(Into::into)
                    .into();
            program.extend(args.iter().cloned());
            let mut exec = sandbox.exec(program);
            let mut folder = fs::canonicalize(&dir).unwrap();
            if let Some(cwd) = cwd.filter(usable) {
                folder.push(&cwd);
                fs::create_dir_all(&folder).unwrap();
                exec = exec.cwd(SandboxPath::from(cwd.as_bytes()));
            }
            // The shell that prints would drop some names, so those go to `env` alone, below.
            let (shell, other): (Vec<_>, Vec<_>) = vars.iter().partition(|(name, _)| is_shell_name(name));
            for (name, value) in &shell {
                exec = exec.env(name.as_str(), *value);
            }
            if timed {
                exec = exec.timeout(Duration::from_mins(1));
            }
            let output = runtime.block_on(async { exec.await }).unwrap();
            prop_assert_eq!(output.status, ExitStatus::Exited(0), "{:?}", output.stderr);
            let mut parts = output.stdout.bytes().split(|b| *b == 0);
            for arg in &args {
                prop_assert_eq!(parts.next().unwrap(), arg.as_bytes());
            }
            let mut expected = folder.as_os_str().as_bytes().to_vec();
            expected.extend(b"\nx");
            prop_assert_eq!(parts.next().unwrap(), &expected[..]);
            prop_assert_eq!(parts.next().unwrap(), b"--");
            let parts: Vec<_> = parts.collect();
            for (name, value) in &shell {
                let var = [name.as_bytes(), b"=", value.as_bytes()].concat();
                prop_assert!(parts.contains(&&var[..]), "{name}");
            }
            let mut exec = sandbox.exec(["env", "-0"]);
            for (name, value) in &other {
                exec = exec.env(name.as_str(), *value);
            }
            let output = runtime.block_on(async { exec.await }).unwrap();
            let parts: Vec<_> = output.stdout.bytes().split(|b| *b == 0).collect();
            for (name, value) in &other {
                let var = [name.as_bytes(), b"=", value.as_bytes()].concat();
                prop_assert!(parts.contains(&&var[..]), "{name:?}");
            }
            Ok(())
        })
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap();
}

/// A name for a new folder right below the sandbox's.
fn usable(name: &OsString) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.as_bytes().contains(&b'/')
}

fn is_shell_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.as_bytes()[0].is_ascii_digit()
}

/// B199, B200: a folder that cannot be entered is not the program's failure, nor the other way round.
async fn folders_and_programs<P: Whole>(place: &Place<P>) {
    let sandbox = &place.sandbox;
    fs::write(place.dir.join("file"), "x").unwrap();
    fs::create_dir(place.dir.join("shut")).unwrap();
    fs::set_permissions(place.dir.join("shut"), PermissionsExt::from_mode(0o600)).unwrap();
    for cwd in ["/nope", "nope", "file", "no\npe", "shut"] {
        let error = sandbox.exec("echo x").cwd(cwd).env("A", "b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadWorkingDirectory, "{cwd}");
        assert!(error.message().contains(&SandboxPath::from(cwd).to_string()), "{error}");
    }
    let code = |output: Output| output.status.code();
    let own = sandbox.exec("echo 'capbox: cannot be entered' >&2; exit 126").cwd("/").await.unwrap();
    assert_eq!(code(own), Some(126));
    assert_eq!(code(sandbox.exec(["nope"]).cwd("/").await.unwrap()), Some(127));
    assert_eq!(code(sandbox.exec(["./file"]).cwd(".").await.unwrap()), Some(126));
    assert_eq!(code(sandbox.exec(["nope"]).env("A", "b").await.unwrap()), Some(127));
    assert_eq!(code(sandbox.exec(["./file"]).env("A", "b").await.unwrap()), Some(126));
    assert_eq!(code(sandbox.exec(["/"]).env("A", "b").cwd("/").await.unwrap()), Some(126));
    assert_eq!(sandbox.exec(["nope"]).await.unwrap_err().kind(), ErrorKind::ProgramNotFound);

    // Programs of odd names, which are no options, variables or builtins.
    for name in ["a=b", "-x", "exit"] {
        let path = place.dir.join(name);
        fs::write(&path, "#!/bin/sh\nprintf '%s|' \"$@\" \"$A\"\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let one = sandbox.exec([name, "1", "2 3"]).env("A", "b").cwd("/").await.unwrap();
        assert_eq!(one.stdout.text(), "1|2 3|b|", "{name}");
        let other = sandbox.exec([name, "1", "2 3"]).cwd("/").await.unwrap();
        assert_eq!(other.stdout.text(), "1|2 3||", "{name}");
    }

    // What is set is for the program, not for what starts it.
    let output =
        sandbox.exec("echo $PATH").env("PATH", "/nowhere").cwd("/").timeout(Duration::from_mins(1)).await;
    assert_eq!(output.unwrap().stdout.text(), "/nowhere\n");
}

/// B13, B14: codes and signals arrive.
async fn exit_codes<P: Runs>(place: &Place<P>) {
    for code in [0, 1, 7, 124, 126, 255] {
        for exec in
            [place.sandbox.exec(format!("exit {code}")), place.sandbox.exec(format!("exit {code}")).cwd("/")]
        {
            let output = exec.await.unwrap();
            assert_eq!(output.status, ExitStatus::Exited(code));
        }
    }
    for (signal, name) in [(9, "KILL"), (6, "ABRT")] {
        let output = place.sandbox.exec(format!("kill -{name} $$")).env("A", "b").await.unwrap();
        assert_eq!(output.status.shell_code(), 128 + signal);
    }
    let output = place.sandbox.exec("printf out; printf err >&2; exit 3").await.unwrap();
    assert_eq!((&*output.stdout.text(), &*output.stderr.text()), ("out", "err"));
    let output = place.sandbox.exec(["cat"]).input("through").await.unwrap();
    assert_eq!(output.stdout.text(), "through");
}

/// B19, B20, B21, B28: the time is up for the whole group, what was printed is there, and who ignores it is killed.
async fn time_is_up<P: Runs>(place: &Place<P>) {
    let started = Instant::now();
    let sandbox = &place.sandbox;
    let output =
        sandbox.exec("printf partial; exec sleep 30").timeout(Duration::from_millis(500)).cwd("/").await;
    let output = output.unwrap();
    assert_eq!((output.status, &*output.stdout.text()), (ExitStatus::TimedOut, "partial"));
    assert!(started.elapsed() < Duration::from_secs(10));
    let output = sandbox.exec("trap '' TERM; echo a; while :; do sleep 0.1; done");
    let output = output.timeout(Duration::from_millis(200)).env("A", "b").await.unwrap();
    assert_eq!((output.status, &*output.stdout.text()), (ExitStatus::TimedOut, "a\n"));
    assert!(started.elapsed() < Duration::from_secs(20));
    // One's own 124 is one's own.
    let output = sandbox.exec("exit 124").timeout(Duration::from_mins(1)).await.unwrap();
    assert_eq!(output.status, ExitStatus::Exited(124));
    let error = sandbox.exec("true").timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

/// With GNU `timeout` nothing of the process group is left.
#[tokio::test]
async fn time_is_up_for_the_group() {
    let place = Bare::place(Tools::Gnu).await.unwrap();
    let command = "sleep 123.25 & sh -c 'sleep 123.25; echo late' | cat; echo late";
    let output = place.sandbox.exec(command).timeout(Duration::from_millis(500)).await.unwrap();
    assert_eq!((output.status, &*output.stdout.text()), (ExitStatus::TimedOut, ""));
    let left = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|p| fs::read(p.path().join("cmdline")).ok()).any(|c| c == b"sleep\x00123.25\0")
    };
    for _ in 0..100 {
        if !left() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a `sleep` is left");
}

/// The bound and the totals are those of a run.
async fn output_is_collected<P: Whole>(place: &Place<P>) {
    let command = "i=0; while [ $i -lt 1000 ]; do echo 123456789; i=$((i+1)); done; echo err >&2; exit 5";
    let output = place.sandbox.exec(command).max_output(100).await.unwrap();
    assert_eq!((output.status, output.stdout.total()), (ExitStatus::Exited(5), 10_000));
    assert!(output.stdout.truncated() && output.stdout.bytes().len() == 100);
    assert_eq!(output.stderr.text(), "err\n");
    // B37: more than a pipe holds, both ways.
    let input = crate::files::noise(2 << 20);
    let output = place.sandbox.exec(["cat"]).input(input.clone()).await.unwrap();
    assert!(output.stdout.bytes() == input);
}

async fn exit_codes_are_not_made_up(place: &Place<Codeless>) {
    let sandbox = &place.sandbox;
    // Names that are builtins of a shell are programs here as well.
    assert_eq!(sandbox.exec(["test", "1", "=", "2"]).await.unwrap().status, ExitStatus::Exited(1));
    assert_eq!(sandbox.exec(["exit", "3"]).await.unwrap().status, ExitStatus::Exited(127));
    let file = || sandbox.native().last.lock().unwrap().last().unwrap().clone();
    assert!(file().to_string_lossy().starts_with("/tmp/.capbox-"));
    assert!(!fs::exists(file()).unwrap(), "it is removed");
    // The shell around the program is killed: nobody knows how the program ended.
    let output = sandbox.exec("kill -KILL $PPID; exit 0").await.unwrap();
    assert_eq!(output.status, ExitStatus::Unknown);
    let error = sandbox.exec("true").cwd("/nope").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadWorkingDirectory);
}
