//! Promises about the program on this machine.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Promise, Trial, ensure};
use crate::tools::{Result, cargo, output, root};

pub(super) const PROMISES: &[Promise] = &[
    ("readme-first-command", readme_first_command),
    ("readme-example", readme_example),
    ("exit-codes", exit_codes),
    ("timeout-kills-the-tree", timeout_kills_the_tree),
    ("host-is-hidden", host_is_hidden),
    ("sandboxes-outlive-their-creator", sandboxes_outlive_their_creator),
    ("ttl-ends-a-sandbox", ttl_ends_a_sandbox),
    ("caps-are-complete", caps_are_complete),
    ("plan-explains", plan_explains),
    ("bad-input-is-explained", bad_input_is_explained),
    ("no-user-namespaces-is-explained", no_user_namespaces_is_explained),
    ("killed-callers-leave-nothing", killed_callers_leave_nothing),
    ("many-runs-leave-nothing", many_runs_leave_nothing),
];

/// The first command of the README runs Python in a sandbox and prints what it prints.
fn readme_first_command(_: &Trial) -> Result {
    let readme = fs::read_to_string(root().join("README.md")).map_err(|e| format!("README.md: {e}"))?;
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next());
    let command = block.ok_or("the README shows no command")?.trim();
    let printed = output(std::process::Command::new("sh").args(["-c", command]).current_dir(root()))?;
    let expected = readme.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    let expected = expected.ok_or("the README does not show what the first command prints")?;
    ensure(printed.trim() == expected.trim(), || format!("`{command}` printed `{printed}`, not `{expected}`"))
}

/// The README shows the example of the facade to the letter, and that runs.
fn readme_example(_: &Trial) -> Result {
    let read = |path: &str| fs::read_to_string(root().join(path)).map_err(|e| format!("{path}: {e}"));
    let (readme, example) = (read("README.md")?, read("crates/capbox/examples/readme.rs")?);
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let shown = shown.ok_or("the README shows no Rust")?;
    ensure(example.ends_with(shown), || {
        "the README shows another program than `examples/readme.rs`".to_owned()
    })?;
    let printed = output(cargo().args(["run", "--quiet", "--package", "capbox", "--example", "readme"]))?;
    ensure(printed.contains("two"), || format!("the example printed `{printed}`"))
}

fn exit_codes(t: &Trial) -> Result {
    t.expect(42, &["run", "--", "sh", "-c", "exit 42"])?;
    t.expect(137, &["run", "--", "sh", "-c", "kill -9 $$"])?;
    t.expect(134, &["run", "--", "sh", "-c", "kill -ABRT $$"])?;
    t.expect(127, &["run", "--", "/no/such/program"])?;
    t.expect(126, &["run", "--", "/etc/passwd"])?;
    Ok(())
}

fn timeout_kills_the_tree(t: &Trial) -> Result {
    let start = Instant::now();
    t.expect(124, &["run", "--timeout", "1s", "--", "sh", "-c", "setsid sleep 300.25 & sleep 300.25"])?;
    let took = start.elapsed();
    ensure(took < Duration::from_secs(2), || format!("it took {took:?}"))?;
    let left = processes(|cmdline| cmdline.contains("300.25"));
    ensure(left.is_empty(), || format!("these processes survived: {left:?}"))
}

fn host_is_hidden(t: &Trial) -> Result {
    let secret = "a-secret-of-the-host";
    let out = t
        .capbox(&[
            "run",
            "--",
            "sh",
            "-c",
            "cat /root/.ssh/* /home/*/.ssh/*; env; ls /proc; cat /proc/net/dev",
        ])
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .output()
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure(!text.contains(secret), || "the host's environment shows".to_owned())?;
    ensure(!text.contains("PRIVATE KEY"), || "the host's keys show".to_owned())?;
    let pids: BTreeSet<&str> = text.lines().filter(|l| l.parse::<u32>().is_ok()).collect();
    ensure(pids.len() <= 4, || format!("more processes than the sandbox's own show: {pids:?}"))?;
    let interfaces: Vec<&str> = text
        .lines()
        .filter_map(|l| l.trim().split_once(':'))
        .map(|(name, _)| name)
        .filter(|n| n.chars().all(char::is_alphanumeric))
        .collect();
    ensure(interfaces == ["lo"], || format!("interfaces beside `lo` show: {interfaces:?}"))
}

fn sandboxes_outlive_their_creator(t: &Trial) -> Result {
    // `setsid` shells: the creator and its session are gone before the next command runs.
    let id = t.expect(0, &["create", "--label", "trial=outlive"])?.trim().to_owned();
    t.expect(0, &["exec", &id, "--", "sh", "-c", "echo kept > note"])?;
    let file = t.state().join("note-out");
    t.expect(0, &["cp", &format!("{id}:note"), file.to_str().ok_or("the path is not text")?])?;
    let note = fs::read_to_string(&file).map_err(|e| format!("the copied file: {e}"))?;
    ensure(note == "kept\n", || format!("the copied file says `{note}`"))?;
    let list: Value = json(&t.expect(0, &["ps", "--json"])?)?;
    ensure(list.to_string().contains(&id), || format!("`{id}` is not listed in {list}"))?;
    t.expect(0, &["rm", &id])?;
    let list = t.expect(0, &["ps", "--json"])?;
    ensure(!list.contains(&id), || format!("`{id}` is still listed"))?;
    t.expect(125, &["exec", &id, "--", "true"])?;
    Ok(())
}

fn ttl_ends_a_sandbox(t: &Trial) -> Result {
    let id = t.expect(0, &["create", "--ttl", "1s"])?.trim().to_owned();
    std::thread::sleep(Duration::from_millis(1800));
    let folder = t.state().join("sandboxes").join(&id);
    ensure(!folder.exists(), || format!("`{}` is still there", folder.display()))
}

fn caps_are_complete(t: &Trial) -> Result {
    let caps: Value = json(&t.expect(0, &["caps", "local", "--json"])?)?;
    let provider = &caps["providers"][0];
    let rows = provider["rows"].as_array().map_or(0, Vec::len);
    let listed = fs::read_to_string(root().join("docs/rows.md")).map_err(|e| e.to_string())?;
    let listed = listed.split("## The row list").nth(1).unwrap_or_default();
    let listed = listed.split("## The flags").next().unwrap_or_default();
    let listed = listed.lines().filter(|line| line.starts_with("| `")).count();
    ensure(rows == listed, || format!("{rows} rows are answered, {listed} are documented"))?;
    let flags = provider["flags"].as_object().map_or(0, serde_json::Map::len);
    ensure(flags >= 25, || format!("only {flags} flags are told"))
}

fn plan_explains(t: &Trial) -> Result {
    let out = t.output(&["plan", "--need", "gpu", "--json"])?;
    let plan: Value = json(&String::from_utf8_lossy(&out.stdout))?;
    let candidates = plan["candidates"].as_array().ok_or("there are no candidates")?;
    for candidate in candidates {
        let fits = candidate["fits"] == Value::Bool(true);
        let reasons = candidate["refusals"].as_array().map_or(0, Vec::len);
        ensure(fits || reasons > 0, || format!("a refusal without a reason: {candidate}"))?;
    }
    ensure(!candidates.is_empty(), || "nobody was asked".to_owned())
}

fn bad_input_is_explained(t: &Trial) -> Result {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "--on", "nowhere://", "--", "true"], "nowhere"),
        (&["run", "--on", "not a uri", "--", "true"], "://"),
        (&["run", "--on", "local://?speed=11", "--", "true"], "speed"),
        (&["run"], "COMMAND"),
        (&["run", "--timeout", "0s", "--", "true"], "0s"),
        (&["run", "--timeout", "-1s", "--", "true"], "-1s"),
        (&["run", "--env", "A;B=1", "--", "echo hi"], "A;B"),
        (&["run", "--cwd", "/nope", "--", "true"], "/nope"),
        (&["run", "--mount", "/tmp:relative", "--", "true"], "relative"),
        (&["exec", "no-such-sandbox", "--", "true"], "no-such-sandbox"),
        (&["files", "cat", "no-such-sandbox:/etc/passwd"], "no-such-sandbox"),
    ];
    for (args, named) in cases {
        let out = t.output(args)?;
        let message = String::from_utf8_lossy(&out.stderr);
        ensure(out.status.code() == Some(125), || {
            format!("{args:?}: {} instead of 125\n{message}", out.status)
        })?;
        ensure(message.contains(named), || format!("{args:?}: `{named}` is not named in: {message}"))?;
    }
    nothing_left(t)
}

/// SIGKILL of the caller at a hundred moments of `create`, `exec` and the rest of a run.
fn killed_callers_leave_nothing(t: &Trial) -> Result {
    for i in 0..100_u64 {
        let mut child = t
            .capbox(&["run", "--ttl", "20s", "--", "sh", "-c", "sleep 0.01; sleep 300.75 & sleep 300.75"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        // Spread over the first 15 ms in steps that never fall on the same moment twice.
        std::thread::sleep(Duration::from_micros(i * 7919 % 15_000));
        child.kill().map_err(|e| e.to_string())?;
        let status = child.wait().map_err(|e| e.to_string())?;
        ensure(status.signal() == Some(9), || format!("the caller ended by itself: {status}"))?;
    }
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end && nothing_left(t).is_err() {
        std::thread::sleep(Duration::from_millis(50));
    }
    nothing_left(t)?;
    let left = processes(|cmdline| cmdline.contains("300.75"));
    ensure(left.is_empty(), || format!("these processes survived: {left:?}"))
}

/// Ten thousand runs in a row, when asked for by `CAPBOX_VERIFY_FULL`; else five hundred.
fn many_runs_leave_nothing(t: &Trial) -> Result {
    let runs = if std::env::var_os("CAPBOX_VERIFY_FULL").is_some() { 10_000 } else { 500 };
    let before = host_state();
    for _ in 0..runs {
        t.expect(0, &["run", "--", "true"])?;
    }
    nothing_left(t)?;
    // Network namespaces are torn down by a worker of the kernel, a moment later.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let after = host_state();
        // Less than before is what others on this host let go.
        let more = after.iter().zip(&before).any(|((_, after), (_, before))| after > before);
        if !more || Instant::now() > end {
            return ensure(!more, || format!("before: {before:?}\n    after: {after:?}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// No sandbox, no process of one, no file of one.
fn nothing_left(t: &Trial) -> Result {
    let folder = t.state().join("sandboxes");
    let left: Vec<_> =
        fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    ensure(left.is_empty(), || format!("left in `{}`: {left:?}", folder.display()))?;
    let guests = processes(|cmdline| cmdline.starts_with("capbox-guest"));
    let ours: Vec<_> = guests.into_iter().filter(|pid| has_state_open(*pid, t)).collect();
    ensure(ours.is_empty(), || format!("guests are left: {ours:?}"))
}

/// True where the process has something of the trial's state folder open.
fn has_state_open(pid: u32, t: &Trial) -> bool {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|target| target.starts_with(t.state()))
}

/// What a leak would change: guests, mounts, namespaces, cgroups, sockets.
fn host_state() -> Vec<(&'static str, usize)> {
    let lines = |path: &str| fs::read_to_string(path).map_or(0, |text| text.lines().count());
    let abstract_and_path_sockets = fs::read_to_string("/proc/net/unix")
        .map_or(0, |text| text.lines().filter(|line| line.contains("capbox")).count());
    let namespaces: BTreeSet<_> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .flat_map(|p| {
            ["user", "mnt", "pid", "net", "cgroup"]
                .map(|kind| fs::read_link(p.path().join("ns").join(kind)).ok())
        })
        .flatten()
        .collect();
    vec![
        ("guests", processes(|cmdline| cmdline.starts_with("capbox-guest")).len()),
        ("mounts", lines("/proc/self/mountinfo")),
        ("namespaces", namespaces.len()),
        ("cgroups", lines("/proc/cgroups") + count_cgroups()),
        ("sockets", abstract_and_path_sockets),
    ]
}

fn count_cgroups() -> usize {
    let mut count = 0;
    let mut folders = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                count += 1;
                folders.push(entry.path());
            }
        }
    }
    count
}

/// The pids of the processes whose command line fits.
fn processes(fits: impl Fn(&str) -> bool) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| *pid != std::process::id())
        .filter(|pid| {
            let mut cmdline = Vec::new();
            let read =
                fs::File::open(format!("/proc/{pid}/cmdline")).and_then(|mut f| f.read_to_end(&mut cmdline));
            read.is_ok() && fits(&String::from_utf8_lossy(&cmdline))
        })
        .collect()
}

fn json(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| format!("not JSON ({e}): {text}"))
}

/// A host without user namespaces gets an error that says how to allow them, and nothing is left.
///
/// Such a host is made within a user namespace of our own, where no further one may be made.
fn no_user_namespaces_is_explained(t: &Trial) -> Result {
    let script =
        format!("echo 0 > /proc/sys/user/max_user_namespaces && exec {} run -- true", t.program().display());
    let out = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .env("CAPBOX_STATE_DIR", t.state().join("nested"))
        .output()
        .map_err(|e| format!("start `unshare`: {e}"))?;
    let message = String::from_utf8_lossy(&out.stderr);
    ensure(out.status.code() == Some(125), || format!("{} instead of 125\n{message}", out.status))?;
    ensure(message.contains("namespaces"), || format!("namespaces are not named in: {message}"))?;
    ensure(message.contains("hint:"), || format!("there is no hint in: {message}"))?;
    fs::remove_dir_all(t.state().join("nested")).ok();
    nothing_left(t)
}
