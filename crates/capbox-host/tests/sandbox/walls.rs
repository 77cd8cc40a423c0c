//! What keeps the code inside: one test for each hole that such a sandbox can have.
//!
//! Each names the remedy without which it fails.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use capbox_guest::proto;
use capbox_host::{Guest, Launch, Mount};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use crate::support::{Outcome, collect, guest, host, print, run_sh, scratch, sh, tests};

tests! {
    Both only_pipes_come_in,
    Both process_one_is_out_of_sight_and_reach,
    Both limits_of_process_one_cannot_be_set,
    Both no_capability_and_no_way_to_one,
    Both no_namespaces_inside,
    Both other_doors_into_the_kernel_are_shut,
    Both rarely_used_parts_of_the_kernel_are_shut,
    Both programs_that_are_often_used_work,
    Both other_architectures_are_shut,
    Both the_state_folder_is_private,
    Both the_hosts_paths_do_not_show,
    Both the_hosts_sockets_are_out_of_reach,
    Both a_terminal_cannot_be_typed_into,
    Both devices_cannot_be_made,
    Both core_dumps_run_nothing,
    Both ignored_signals_and_masks_are_not_inherited,
    Both descriptors_of_the_host_do_not_leak,
    Both the_process_limit_is_the_sandboxs_own,
    Both mounts_keep_owners_and_what_is_protected,
    Both read_only_mounts_are,
    Both bad_mounts_are_refused,
    Both links_in_a_mount_do_not_lead_the_next_one,
    Both code_cannot_reach_control_sockets,
    Both code_cannot_command_sandboxes_of_another_state_folder,
    Root the_state_folder_does_not_show_by_another_name,
    Root a_client_in_another_network_is_told_so,
    Both what_cannot_be_watched_keeps_no_place,
    Both stopping_everything_does_not_stop_the_guest,
    Both what_is_counted_for_the_creator_is_shared,
    Both keys_of_the_caller_do_not_show,
    Both descriptors_on_their_way_shut_nobody_out,
}

/// What a Python program prints.
async fn python(guest: &Guest, program: &str) -> Result<String, capbox_host::Error> {
    let prelude = "
import ctypes, errno, os, socket, fcntl, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    result = libc.syscall(ctypes.c_long(number), *args)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else 'ok'
";
    let request = capbox_host::ExecRequest::new(["python3", "-c", &format!("{prelude}{program}")]);
    let output = collect(guest.exec(request).await?).await?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text + &String::from_utf8_lossy(&output.stderr))
}

/// Sends an exec by hand, with standard output and error as given, and answers with the guest's event.
fn exec_with(
    control: &OwnedFd,
    output: &impl AsFd,
) -> Result<proto::Event, Box<dyn std::error::Error + Send + Sync>> {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let exec = proto::Exec { argv: vec!["true".into()], ..proto::Exec::default() };
    let message = proto::Request::Exec { exec }.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let fds = [theirs.as_fd(), output.as_fd(), output.as_fd()];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&fds)));
    rustix::net::sendmsg(control, &[IoSlice::new(&message)], &mut rights, SendFlags::empty())?;
    drop(theirs);
    let mut buffer = vec![0; proto::MAX_PACKET];
    let (len, _) = rustix::net::recv(&ours, &mut *buffer, RecvFlags::empty())?;
    proto::Event::decode(&buffer[..len]).map_err(|error| format!("{error:?}").into())
}

/// Hole 2: an open file can be opened anew for writing, through `/proc/self/fd`. Fails without the check of the
/// descriptors' file system in the guest.
async fn only_pipes_come_in() -> Outcome {
    let guest = guest().await?;
    let control = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    let path = host().state_dir().join("sandboxes").join(guest.id()).join("control");
    rustix::net::connect(&control, &SocketAddrUnix::new(path)?)?;
    let folder = scratch("stdio");
    let fifo = folder.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0)?;
    let both = std::fs::File::options().read(true).write(true).open(&fifo)?;
    let file = std::fs::File::create(folder.join("file"))?;
    let directory = std::fs::File::open(&folder)?;
    let (socket, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let refused = proto::Event::Failed { stage: proto::Stage::Request, errno: 22 };
    assert_eq!(exec_with(&control, &file)?, refused);
    assert_eq!(exec_with(&control, &directory)?, refused);
    assert_eq!(exec_with(&control, &socket)?, refused);
    assert_eq!(exec_with(&control, &both)?, refused);
    let (_read, write) = rustix::pipe::pipe()?;
    assert!(matches!(exec_with(&control, &write)?, proto::Event::Started { .. }));
    Ok(())
}

/// Holes 3 and 5. Fails without `hidepid=invisible`.
async fn process_one_is_out_of_sight_and_reach() -> Outcome {
    let guest = guest().await?;
    let text = print(
        &guest,
        "ls -d /proc/1 /proc/1/fd /proc/1/root; echo 1000 > /proc/1/oom_score_adj; ps -p 1 -o pid=",
    )
    .await?;
    assert_eq!(text.matches("No such file").count() + text.matches("nonexistent").count(), 4, "{text}");
    // ptrace, process_vm_readv, pidfd_open + pidfd_getfd, setns by pidfd.
    let text = python(
        &guest,
        "
print(call(101, 16, 1, 0, 0), call(310, 1, 0, 0, 0, 0, 0))
fd = libc.syscall(434, 1, 0)
print(call(438, fd, 3, 0), call(308, fd, 0x10000000))
for signal in (9, 15, 19, 10):
    try: os.kill(1, signal); print('sent')
    except OSError as error: print(error.errno)
",
    )
    .await?;
    assert!(text.starts_with("EPERM") || text.starts_with("ESRCH"), "{text}");
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("EPERM E")), "{text}");
    // Under an unprivileged caller a signal may be sent, and does nothing: the next command shows it.
    assert_eq!(print(&guest, "echo alive").await?, "alive\n");
    Ok(())
}

/// Hole 4. Fails without the filter's rule (for a single id) or the guest's own id (for several).
async fn limits_of_process_one_cannot_be_set() -> Outcome {
    let guest = guest().await?;
    let text = python(
        &guest,
        "
limit = (ctypes.c_ulong * 2)(3, 3)
print(call(302, 1, 7, limit, 0), call(302, 1, 0, limit, 0), call(302, 0, 7, 0, limit))
",
    )
    .await?;
    assert_eq!(text, "EPERM EPERM ok\n");
    assert_eq!(print(&guest, "echo alive").await?, "alive\n");
    Ok(())
}

/// Fails without the emptied bounding set, securebits and `no_new_privs`.
async fn no_capability_and_no_way_to_one() -> Outcome {
    let guest = guest().await?;
    let script = "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t\\n'";
    let expected = "CapInh:0000000000000000CapPrm:0000000000000000CapEff:0000000000000000CapBnd:0000000000000000\
                    CapAmb:0000000000000000NoNewPrivs:1Seccomp:2";
    assert_eq!(print(&guest, script).await?, expected);
    if rustix::process::geteuid().is_root() {
        let mut request = sh(script);
        request.user = Some("root".into());
        let output = collect(guest.exec(request).await?).await?;
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        // Root inside owns the root folder, and nothing of the kernel's.
        let mut request = sh(
            "mount -t tmpfs t /mnt || echo no; hostname x || echo no; echo x > /proc/sys/kernel/core_pattern || echo no; chroot / true || echo no",
        );
        request.user = Some("root".into());
        let output = collect(guest.exec(request).await?).await?;
        assert_eq!(String::from_utf8_lossy(&output.stdout), "no\nno\nno\nno\n");
    }
    Ok(())
}

/// Hole 6. Two walls: fails for `unshare` without the filter and the limit of user namespaces.
async fn no_namespaces_inside() -> Outcome {
    let guest = guest().await?;
    let text = print(&guest, "cat /proc/sys/user/max_user_namespaces; unshare -U true; unshare -m true; unshare -C true; unshare -n true").await?;
    assert!(text.starts_with("0\n"), "{text}");
    assert_eq!(text.matches("unshare failed").count(), 4, "{text}");
    let text = python(
        &guest,
        "
print(call(435, 0, 0), call(272, 0x10000000), call(272, 0x02000000), call(56, 0x10000011, 0, 0, 0, 0), call(56, 0x02000011, 0, 0, 0, 0))
",
    )
    .await?;
    assert_eq!(text, "ENOSYS EPERM EPERM EPERM EPERM\n");
    Ok(())
}

/// Holes 7 and 8. Fails without the filter.
async fn other_doors_into_the_kernel_are_shut() -> Outcome {
    let guest = guest().await?;
    let text = python(
        &guest,
        "
print(call(248, b'user', b'x', b'y', 1, -3), call(250, 0, -3, 0), call(249, b'user', b'x', 0, 0))
print(call(425, 1, 0), call(321, 0, 0, 0), call(298, 0, 0, -1, -1, 0), call(323, 0), call(304, -100, 0, 0), call(303, -100, b'/', 0, 0, 0))
print(call(165, b't', b'/mnt', b'tmpfs', 0, 0), call(428, -100, b'/', 1), call(430, b'tmpfs', 0), call(161, b'/'), call(155, b'.', b'.'))
print(call(246, 0, 0, 0, 0), call(175, 0, 0, b''), call(169, 0, 0, 0, 0), call(103, 3, 0, 0), call(164, 0, 0))
for family in (40, 17, 38, 9, 30, 44):
    try: socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM); print('made')
    except OSError as error: print(errno.errorcode[error.errno], end=' ')
socket.socket(socket.AF_INET, socket.SOCK_STREAM); socket.socket(socket.AF_UNIX); print()
",
    )
    .await?;
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "EPERM EPERM EPERM");
    assert_eq!(lines[1], "ENOSYS EPERM EPERM EPERM EPERM EPERM");
    assert_eq!(lines[2], "EPERM EPERM EPERM EPERM EPERM");
    assert_eq!(lines[3], "EPERM EPERM EPERM EPERM EPERM");
    assert_eq!(lines[4], "EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT EAFNOSUPPORT ");
    Ok(())
}

/// Fails without the filter's look at arguments.
async fn rarely_used_parts_of_the_kernel_are_shut() -> Outcome {
    let guest = guest().await?;
    let program = "
print(call(135, 0xffffffff), call(135, 0x40000), call(135, 0), call(135, 0x400000), call(135, 8))
print(call(440, 0, 0, 0, 0, 0), call(238, 0, 0, 0), call(237, 0, 0, 0, 0, 0, 0), call(450, 0, 0, 0, 0), call(448, 0, 0), call(216, 0, 0, 0, 0, 0))
STREAM, DATAGRAM, RAW, SEQUENCED, DCCP, UDPLITE, MPTCP, SCTP = 1, 2, 3, 5, 6, 136, 262, 132
for family, kind, protocol in (
    (2, STREAM | socket.SOCK_CLOEXEC, 0), (10, DATAGRAM | socket.SOCK_NONBLOCK, 17), (16, RAW, 0), (16, DATAGRAM, 4), (1, SEQUENCED, 0),
    (2, STREAM, MPTCP), (10, DATAGRAM, UDPLITE), (2, STREAM, SCTP), (2, SEQUENCED, 0), (10, DCCP, 33), (2, 10, 0),
    (16, RAW, 15), (16, RAW, 12), (16, RAW, 16), (16, RAW, 9),
):
    print(call(41, family, kind, protocol), end=' ')
print(call(53, 2, STREAM, MPTCP, 0))
one = socket.socket()
for option in (31, 1):
    try: one.setsockopt(6, option, 1); print('set')
    except OSError as error: print(errno.errorcode[error.errno])
";
    if cfg!(target_arch = "x86_64") {
        let text = python(&guest, program).await?;
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "ok ok ok EPERM EPERM");
        assert_eq!(lines[1], "ENOSYS EPERM EPERM EPERM EPERM EPERM");
        assert_eq!(
            lines[2],
            "ok ok ok ok ok EPROTONOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT ESOCKTNOSUPPORT ESOCKTNOSUPPORT \
             ESOCKTNOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT EPROTONOSUPPORT"
        );
        assert_eq!(lines[3..], ["ENOPROTOOPT", "set"]);
    }
    Ok(())
}

/// What the filter must not break, as far as it is on this host.
async fn programs_that_are_often_used_work() -> Outcome {
    let guest = guest().await?;
    let text = print(
        &guest,
        r#"have() { command -v "$1" >/dev/null; }
        python3 -c 'import socket, threading, asyncio, multiprocessing
async def main(): await (await asyncio.create_subprocess_exec("true")).wait()
asyncio.run(main()); multiprocessing.Process(target=print).start()
threading.Thread(target=print).start(); socket.create_server(("127.0.0.1", 0)); socket.create_server(("::1", 0), family=socket.AF_INET6)' >/dev/null || echo python
        if have gcc; then echo 'int main(void) { return 0; }' > a.c && gcc a.c -o a && ./a || echo gcc; fi
        if have git; then git init -q r && cd r && git -c user.name=a -c user.email=a@a commit -q --allow-empty -m x && git gc -q && cd .. || echo git; fi
        if have node; then node -e 'require("net").createServer().listen(0, function () { this.close() })' || echo node; fi
        if have setarch; then setarch -R true || echo setarch; fi
        if have gdb; then gdb -q -batch -ex run -ex quit ./a >/dev/null || echo gdb; fi
        if have ip; then ip addr show lo >/dev/null || echo ip; fi
        if have ss; then ss -ltn >/dev/null || echo ss; fi
        if have apt-get; then apt-get --version >/dev/null || echo apt; fi
        if have perl; then perl -e 'use Socket; socket(S, PF_INET, SOCK_STREAM, getprotobyname("tcp")) or die' || echo perl; fi
        if have curl; then curl -s --max-time 2 http://127.0.0.1:1; [ $? = 7 ] || echo curl; fi"#,
    )
    .await?;
    assert_eq!(text, "");
    Ok(())
}

/// Fails without the filter's look at the architecture and at x32 numbers.
async fn other_architectures_are_shut() -> Outcome {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    let guest = guest().await?;
    let output = run_sh(
        &guest,
        r#"exec python3 -c '
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
print(libc.syscall(ctypes.c_long(0x40000000 + 39)), ctypes.get_errno(), flush=True)
page = mmap.mmap(-1, 4096, prot=7)
page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid of i386); int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
print("came back")'"#,
    )
    .await?;
    assert_eq!(output.stdout, b"-1 38\n");
    // SIGSYS; SIGSEGV where the kernel has no 32-bit calls at all.
    assert!(matches!(output.exit.signal, Some(31 | 11)), "{:?}", output.exit);
    Ok(())
}

/// Hole 9: a set-user-id file in the writable layer is one on the host.
async fn the_state_folder_is_private() -> Outcome {
    let guest = guest().await?;
    run_sh(&guest, "cp /bin/true x; chmod 4755 x").await?;
    let state = host().state_dir().to_owned();
    for folder in [state.clone(), state.join("sandboxes"), state.join("sandboxes").join(guest.id())] {
        assert_eq!(std::fs::metadata(&folder)?.mode() & 0o777, 0o700, "{}", folder.display());
    }
    // And inside it is none.
    assert!(print(&guest, "grep ' / / ' /proc/self/mountinfo").await?.contains("nosuid"));
    Ok(())
}

/// Hole 10. Fails when layers are given by their paths.
async fn the_hosts_paths_do_not_show() -> Outcome {
    let guest = guest().await?;
    let state = host().state_dir().display().to_string();
    let text = print(
        &guest,
        "cat /proc/self/mountinfo /proc/mounts /proc/self/environ /proc/self/cmdline /proc/*/cmdline",
    )
    .await?;
    assert!(!text.contains(&state) && !text.contains("sandboxes") && !text.contains(guest.id()), "{text}");
    Ok(())
}

/// Hole 11. Fails without a network namespace.
async fn the_hosts_sockets_are_out_of_reach() -> Outcome {
    let guest = guest().await?;
    let name = format!("capbox-test-{}", std::process::id());
    let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::net::listen(&listener, 1)?;
    let tcp = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = tcp.local_addr()?.port();
    let text = python(
        &guest,
        &format!(
            "
for family, address in ((socket.AF_UNIX, '\\0{name}'), (socket.AF_INET, ('127.0.0.1', {port})), (socket.AF_INET, ('1.1.1.1', 53))):
    try: socket.socket(family).connect(address); print('connected')
    except OSError as error: print(errno.errorcode[error.errno])
server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname()); print('own')
print([name for _, name in socket.if_nameindex()])
"
        ),
    )
    .await?;
    assert_eq!(text, "ECONNREFUSED\nECONNREFUSED\nENETUNREACH\nown\n['lo']\n");
    Ok(())
}

/// Hole 12. Fails without the filter's rule, or when it compares all 64 bits.
async fn a_terminal_cannot_be_typed_into() -> Outcome {
    let guest = guest().await?;
    let mut request = capbox_host::ExecRequest::new([
        "python3",
        "-c",
        "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for request in (0x5412, 0x5412 | 1 << 32, 0x541c, 0x5423):
    result = libc.syscall(ctypes.c_long(16), ctypes.c_long(0), ctypes.c_long(request), ctypes.c_char_p(b'x'))
    print(result, ctypes.get_errno())
",
    ]);
    request.pty = Some(capbox_host::PtySize { rows: 24, columns: 80 });
    let output = collect(guest.exec(request).await?).await?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "-1 1\r\n".repeat(4));
    Ok(())
}

/// Hole 13.
async fn devices_cannot_be_made() -> Outcome {
    let guest = guest().await?;
    let text =
        print(&guest, "mknod b b 254 0 || echo no; mknod c c 1 1 || echo no; ls /dev | tr '\\n' ' '").await?;
    assert_eq!(text.matches("no\n").count(), 2, "{text}");
    assert!(
        text.contains("fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "),
        "{text}"
    );
    Ok(())
}

/// Hole 14. Fails without the limit, which is 1 on purpose: 0 does not stop handlers that are programs.
async fn core_dumps_run_nothing() -> Outcome {
    let guest = guest().await?;
    let limits = print(&guest, "grep core /proc/self/limits | tr -s ' '").await?;
    assert_eq!(limits, "Max core file size 1 1 bytes \n");
    let exit = run_sh(&guest, "ulimit -c unlimited 2>/dev/null; kill -SEGV $$").await?.exit;
    assert_eq!(exit.signal, Some(11));
    Ok(())
}

async fn ignored_signals_and_masks_are_not_inherited() -> Outcome {
    // Rust programs ignore SIGPIPE; what they start must not.
    let guest = guest().await?;
    let text = print(&guest, "grep -E '^Sig(Blk|Ign)' /proc/self/status | tr -d '\\t\\n'; umask; echo; ls -l /proc/self/fd | wc -l").await?;
    assert_eq!(text, "SigBlk:0000000000000000SigIgn:00000000000000000022\n\n5\n");
    Ok(())
}

async fn descriptors_of_the_host_do_not_leak() -> Outcome {
    // One that does not close on exec, as libraries make them.
    let folder = std::fs::File::open("/")?;
    let leaky = rustix::io::fcntl_dupfd_cloexec(&folder, 200)?;
    rustix::io::fcntl_setfd(&leaky, rustix::io::FdFlags::empty())?;
    let guest = guest().await?;
    assert_eq!(print(&guest, "ls /proc/self/fd | tr '\\n' ' '").await?, "0 1 2 3 ");
    if rustix::process::geteuid().is_root() {
        // Nor into the guest itself, which only root can look at.
        let host = crate::life::own_host("leak")?;
        let _guest = host.launch(Launch::default()).await?;
        let pid = crate::life::outer_pid(&host).ok_or("no lock")?;
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
            let number = entry?.file_name().to_string_lossy().parse::<i32>()?;
            assert!(number < std::os::fd::AsRawFd::as_raw_fd(&leaky), "{number}");
        }
    }
    drop(leaky);
    Ok(())
}

async fn the_process_limit_is_the_sandboxs_own() -> Outcome {
    let mut launch = Launch::default();
    launch.processes = 20;
    let (small, other) = (host().launch(launch).await?, guest().await?);
    let other_job = other.spawn(sh("for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 60 & done; wait")).await?;
    let text = print(&small, "(for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do sleep 60 & done) 2>&1; echo $(ps -e | grep -c sleep)").await?;
    assert!(text.to_lowercase().contains("cannot fork"), "{text}");
    other.kill(&other_job).await?;
    for job in small.ps().await? {
        let _ = small.kill(&job.id).await;
    }
    assert_eq!(print(&small, "echo fine").await?, "fine\n");
    Ok(())
}

fn repository() -> Result<std::path::PathBuf, std::io::Error> {
    let folder = scratch("repository");
    std::fs::create_dir_all(folder.join(".git/hooks"))?;
    std::fs::write(folder.join(".git/config"), "[core]\n")?;
    std::fs::write(folder.join(".envrc"), "true\n")?;
    std::fs::write(folder.join("readme"), "hello\n")?;
    Ok(folder)
}

fn launch_with(mount: Mount) -> Launch {
    let mut launch = Launch::default();
    launch.mounts = vec![mount];
    launch
}

/// Fails without the binds of protected files, and of the folders around them.
async fn mounts_keep_owners_and_what_is_protected() -> Outcome {
    let folder = repository()?;
    let root = rustix::process::geteuid().is_root();
    if root {
        // A user of the host's, whose files they stay.
        for path in ["", ".git", ".git/hooks", ".git/config", ".envrc", "readme"] {
            std::os::unix::fs::chown(folder.join(path), Some(4321), Some(4321))?;
        }
    }
    let guest = host().launch(launch_with(Mount::new(&folder, "/work/repo"))).await?;
    let text = print(
        &guest,
        "cd /work/repo; cat readme; stat -c '%U' readme; echo changed > readme; mkdir new; echo x > new/f
         echo evil > .git/hooks/pre-commit || echo no; echo evil > .git/config || echo no; echo evil > .envrc || echo no
         mv .git .got || echo no; rm -rf .git/hooks .envrc .git || echo no; echo ../evil > .git/commondir || echo no
         chmod 4755 readme || echo no; chmod u+s,g+s new || echo no; python3 -c 'import os; os.open(\"suid\", os.O_CREAT, 0o4755)' 2>/dev/null || echo no",
    )
    .await?;
    assert!(text.starts_with("hello\nuser\n"), "{text}");
    assert_eq!(text.lines().filter(|line| *line == "no").count(), 9, "{text}");
    assert!(!folder.join(".git/commondir").exists(), "git is led elsewhere");
    let owner = if root { 4321 } else { rustix::process::geteuid().as_raw() };
    assert_eq!(std::fs::metadata(folder.join("new/f"))?.uid(), owner);
    assert_eq!(std::fs::read_to_string(folder.join("readme"))?, "changed\n");
    assert_eq!(std::fs::read_to_string(folder.join(".envrc"))?, "true\n");
    assert_eq!(std::fs::read_dir(folder.join(".git/hooks"))?.count(), 0);
    assert_eq!(std::fs::metadata(folder.join("readme"))?.permissions().mode() & 0o7000, 0);
    guest.files().await?.chmod(Path::new("/work/repo/readme"), 0o4755)?;
    assert_eq!(std::fs::metadata(folder.join("readme"))?.permissions().mode() & 0o7777, 0o755);

    let mut mount = Mount::new(&folder, "/work/repo");
    mount.unprotected = true;
    let guest = host().launch(launch_with(mount)).await?;
    assert_eq!(print(&guest, "cd /work/repo; echo x > .git/hooks/pre-commit && echo yes").await?, "yes\n");
    guest.destroy().await?;
    assert!(folder.join(".git/hooks/pre-commit").exists(), "what is mounted is not removed with the sandbox");
    Ok(())
}

async fn read_only_mounts_are() -> Outcome {
    let folder = repository()?;
    let mut mount = Mount::new(&folder, "/data/in");
    mount.read_only = true;
    let guest = host().launch(launch_with(mount)).await?;
    let text = print(
        &guest,
        "cd /data/in; cat readme; echo x > readme || echo no; touch new || echo no; rm readme || echo no",
    )
    .await?;
    assert!(text.starts_with("hello\n") && text.lines().filter(|line| *line == "no").count() == 3, "{text}");
    let error = guest.files().await?.remove_all(Path::new("/data/in"));
    assert!(error.is_err() && folder.join("readme").exists());
    Ok(())
}

async fn bad_mounts_are_refused() -> Outcome {
    let folder = scratch("mount");
    // Fails without the list of what the root is made of.
    for target in [
        "relative",
        "/",
        "//",
        "/proc",
        "/proc/x",
        "/dev/shm",
        "/sys",
        "/a/../proc",
        "/usr",
        "/usr/",
        "/./usr",
        "/usr/local",
        "/bin",
        "/bin/x",
        "/sbin",
        "/lib",
        "/lib64",
        "/etc",
        "/etc/ssl/certs",
        "/etc/alternatives",
    ] {
        let error = host().launch(launch_with(Mount::new(&folder, target))).await.expect_err(target);
        assert!(matches!(error, capbox_host::Error::InvalidArgument { .. }), "{error}");
    }
    let error =
        host().launch(launch_with(Mount::new(folder.join("nope"), "/work/x"))).await.expect_err("nope");
    assert!(matches!(error, capbox_host::Error::NotFound { .. }), "{error}");
    // Next to those is no such place.
    for target in ["/etc/mine", "/usr2", "/work/usr"] {
        host().launch(launch_with(Mount::new(&folder, target))).await?.destroy().await?;
    }
    // A place below a link is none.
    assert!(host().launch(launch_with(Mount::new(&folder, "/var/run/x"))).await.is_err());
    Ok(())
}

/// Fails when mount points are found by following links.
async fn links_in_a_mount_do_not_lead_the_next_one() -> Outcome {
    let (first, second) = (scratch("first"), scratch("second"));
    std::os::unix::fs::symlink("/etc", first.join("link"))?;
    let mut launch = launch_with(Mount::new(&first, "/work/a"));
    launch.mounts.push(Mount::new(&second, "/work/a/link"));
    assert!(host().launch(launch).await.is_err());
    Ok(())
}

/// Who reaches a control socket is that sandbox's master. Fails without the cover over the state folder.
async fn code_cannot_reach_control_sockets() -> Outcome {
    let around = scratch("around");
    let mut config = capbox_host::Config::default();
    config.state_dir = Some(around.join("state"));
    let host = capbox_host::Host::open(config)?;
    let state = host.state_dir().to_owned();
    let other = host.launch(Launch::default()).await?;
    for inside in [state.clone(), state.join("sandboxes")] {
        let error =
            host.launch(launch_with(Mount::new(inside, "/state"))).await.expect_err("the state folder");
        assert!(matches!(error, capbox_host::Error::InvalidArgument { .. }), "{error}");
    }
    let guest = host.launch(launch_with(Mount::new(around, "/around"))).await?;
    let name = state.file_name().ok_or("no name")?.to_string_lossy().into_owned();
    let text = print(&guest, &format!("cd /around; ls -A {name} | wc -l; mv {name} other; ls -A other; ls -A {name}; rmdir {name}; ls -A {name} | wc -l")).await?;
    assert!(text.starts_with("0\n0\n") && !text.contains("sandboxes"), "{text}");
    other.info().await?;
    Ok(())
}

/// Whatever is mounted, and whenever: here the very folder of a sandbox whose state folder this sandbox's host does not
/// know. Fails without the check of the client's network namespace.
async fn code_cannot_command_sandboxes_of_another_state_folder() -> Outcome {
    let victims = crate::life::own_host("victims")?;
    let victim = victims.launch(Launch::default()).await?;
    let folder = victims.state_dir().join("sandboxes").join(victim.id());
    let guest = host().launch(launch_with(Mount::new(folder, "/stolen"))).await?;
    let request = proto::Request::Info.encode();
    let text = python(
        &guest,
        &format!(
            "
control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
control.connect('/stolen/control')
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try: socket.send_fds(control, [bytes({request:?})], [theirs.fileno()])
except OSError: pass
theirs.close()
print(ours.recv(9999))
"
        ),
    )
    .await?;
    assert_eq!(text, "b''\n");
    // The same from outside.
    assert_eq!(victims.connect(victim.id()).await?.info().await?.id, victim.id());
    Ok(())
}

/// Fails when only paths are compared.
async fn the_state_folder_does_not_show_by_another_name() -> Outcome {
    let host = crate::life::own_host("aliased")?;
    let guest = host.launch(Launch::default()).await?;
    let around = scratch("an alias\n");
    let aliases = [("all", ""), ("sandboxes", "sandboxes"), ("one", &format!("sandboxes/{}", guest.id()))];
    let mut mounted = Vec::new();
    for (name, of) in aliases {
        let (alias, of) = (around.join(name), host.state_dir().join(of));
        std::fs::create_dir(&alias)?;
        if std::process::Command::new("mount").arg("--bind").arg(of).arg(&alias).status()?.success() {
            mounted.push(alias);
        }
    }
    let outcome = async {
        if mounted.is_empty() {
            println!("skipped: cannot mount");
            return Ok(());
        }
        for alias in &mounted {
            let error = host.launch(launch_with(Mount::new(alias, "/state"))).await.expect_err("an alias");
            assert!(matches!(error, capbox_host::Error::InvalidArgument { .. }), "{error}");
        }
        let guest = host.launch(launch_with(Mount::new(&around, "/around"))).await?;
        assert_eq!(print(&guest, "cd /around; ls -A *").await?, "all:\n\none:\n\nsandboxes:\n");
        Ok(())
    }
    .await;
    for alias in &mounted {
        std::process::Command::new("umount").arg(alias).status()?;
    }
    outcome
}

/// Not that the sandbox is gone, which is what silence would mean.
async fn a_client_in_another_network_is_told_so() -> Outcome {
    let host = crate::life::own_host("elsewhere")?;
    let guest = host.launch(Launch::default()).await?;
    let (other, id) = (host.clone(), guest.id().to_owned());
    let errors = std::thread::spawn(move || {
        use capbox_guest::sys::{CLONE_NEWNET, nr};
        // SAFETY: takes no pointers, and concerns this thread alone.
        unsafe { capbox_guest::raw!(nr::UNSHARE, CLONE_NEWNET) }.expect("leave the network");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime
            .expect("start a runtime")
            .block_on(async { [other.connect(&id).await.err(), other.list().await.err()] })
    });
    for error in errors.join().expect("run the other client") {
        assert!(matches!(error, Some(capbox_host::Error::Permission { .. })), "{error:?}");
    }
    guest.info().await?;
    Ok(())
}

/// Fails when the guest ignores that it cannot watch a descriptor: each then takes a place for good.
async fn what_cannot_be_watched_keeps_no_place() -> Outcome {
    let guest = guest().await?;
    let control = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    let path = host().state_dir().join("sandboxes").join(guest.id()).join("control");
    rustix::net::connect(&control, &SocketAddrUnix::new(path)?)?;
    let file = std::fs::File::create(scratch("unwatched").join("file"))?;
    let message = proto::Request::Files.encode();
    for _ in 0..1100 {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&control, &[IoSlice::new(&message)], &mut rights, SendFlags::empty())?;
    }
    assert_eq!(print(&host().connect(guest.id()).await?, "echo fine").await?, "fine\n");
    Ok(())
}

/// A command that starts runs as the code's user for a moment before it is a program of its own, and can be stopped. Fails
/// when the guest waits for it (`CLONE_VFORK`).
async fn stopping_everything_does_not_stop_the_guest() -> Outcome {
    let guest = guest().await?;
    let files = guest.files().await?;
    run_sh(&guest, "mkdir /tmp/tree; cd /tmp/tree; seq 1 3000 | xargs touch").await?;
    let storm = "import os, signal\nwhile True:\n  try: os.kill(-1, signal.SIGSTOP)\n  except OSError: pass";
    let storms = [guest
        .spawn(capbox_host::ExecRequest::new([
            "python3",
            "-c",
            &format!("import signal\nprint(1, flush=True)\n{storm}"),
        ]))
        .await?];
    let mut attachment = guest.attach(&storms[0], 0, false).await?;
    attachment.next().await?;
    for _ in 0..150 {
        let mut request = sh("true");
        request.timeout = Some(std::time::Duration::from_millis(20));
        if let Ok(Ok(mut job)) =
            tokio::time::timeout(std::time::Duration::from_millis(500), guest.exec(request)).await
        {
            let _ = tokio::time::timeout(std::time::Duration::from_millis(500), job.wait()).await;
        }
        tokio::time::timeout(std::time::Duration::from_secs(2), guest.info()).await??;
    }
    // Nor what works for it.
    let removal = tokio::task::spawn_blocking(move || files.remove_all(Path::new("/tmp/tree")));
    tokio::time::timeout(std::time::Duration::from_secs(20), removal).await???;
    guest.kill(&storms[0]).await?;
    assert_eq!(print(&guest, "echo alive").await?, "alive\n");
    Ok(())
}

/// The kernel counts these for the creator, too, or for the whole machine. Fails without the sandbox's own limits.
async fn what_is_counted_for_the_creator_is_shared() -> Outcome {
    let guest = guest().await?;
    let text = python(
        &guest,
        "
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
most = int(open('/proc/sys/fs/inotify/max_user_instances').read())
instances = []
while len(instances) < most and (fd := libc.inotify_init()) >= 0: instances.append(fd)
terminals = []
try:
    while len(terminals) < 400: terminals.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
except OSError: pass
print(len(instances) < most, len(terminals))
",
    )
    .await?;
    assert_eq!(text, "True 256\n");
    // SIGPENDING, MSGQUEUE.
    for (option, limit) in
        [("i", rustix::process::Resource::Sigpending), ("q", rustix::process::Resource::Msgqueue)]
    {
        let mine = rustix::process::getrlimit(limit).current;
        let theirs = print(&guest, &format!("exec bash -c 'ulimit -{option}'")).await?;
        assert_eq!(theirs.trim().parse().ok(), mine.map(|mine| mine / 4));
    }
    Ok(())
}

/// Keyrings are not of a namespace. Fails, for a caller without privileges, without the covers.
async fn keys_of_the_caller_do_not_show() -> Outcome {
    let guest = guest().await?;
    assert_eq!(print(&guest, "cat /proc/keys /proc/key-users | wc -c").await?, "0\n");
    Ok(())
}

/// With the caller's id inside, descriptors in sockets count for the caller. Fails when code may have as many open as the
/// guest, or the caller has not asked for as many as it may have.
async fn descriptors_on_their_way_shut_nobody_out() -> Outcome {
    let guest = guest().await?;
    // However many the caller needs: programs inside go through all that they may have.
    assert_eq!(print(&guest, "ulimit -Sn").await?, "1024\n");
    let program = "
import array, os, resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
fd, kept, sent = os.open('/dev/null', 0), [], 0
try:
    while sent < 30000:
        kept += socket.socketpair()
        for _ in range(4):
            kept[-2].sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd] * 200))])
            sent += 200
except OSError: pass
print('sent', flush=True)
time.sleep(60)
";
    let job = guest.spawn(capbox_host::ExecRequest::new(["python3", "-c", program])).await?;
    let mut attachment = guest.attach(&job, 0, false).await?;
    attachment.next().await?;
    let mut request = sh("tty");
    request.pty = Some(capbox_host::PtySize { rows: 24, columns: 80 });
    let output = collect(guest.exec(request).await?).await?;
    assert!(output.stdout.starts_with(b"/dev/pts/"));
    guest.files().await?.write(Path::new("file"), &mut &b"x"[..], &capbox_host::WriteOptions::default())?;
    assert_eq!(print(&host().connect(guest.id()).await?, "cat file").await?, "x");
    guest.kill(&job).await?;
    Ok(())
}
