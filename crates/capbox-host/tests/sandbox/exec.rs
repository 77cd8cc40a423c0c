//! Commands: what goes in, what comes out, how they end.

use crate::support::{Outcome, guest, print, run_sh, sh, tests};

tests! {
    Both output_and_exit_code_arrive,
}

async fn output_and_exit_code_arrive() -> Outcome {
    let guest = guest().await?;
    let output = run_sh(&guest, "printf out; printf err >&2; exit 7").await?;
    assert_eq!(output.stdout.bytes, b"out");
    assert_eq!(output.stderr.bytes, b"err");
    assert_eq!(output.exit.code, Some(7));
    println!("{}", print(&guest, "id; env; cat /proc/self/mountinfo; ls -la / /dev /home; ps aux; cat /proc/1/cmdline; cat /proc/self/status | grep -i -E 'cap|secc|nonew'").await?);
    let _ = sh("");
    guest.destroy().await?;
    Ok(())
}
