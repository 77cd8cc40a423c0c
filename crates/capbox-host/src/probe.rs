//! What this host can do, and what to do about what it cannot.

use std::io;

/// What to do about a step that failed; empty if nothing is known.
pub(crate) fn hint(step: &str, error: &io::Error) -> &'static str {
    let _ = error;
    match step {
        "create namespaces" => {
            "allow user namespaces: set `sysctl user.max_user_namespaces` above 0 and, where they exist, \
             `kernel.unprivileged_userns_clone=1` and `kernel.apparmor_restrict_unprivileged_userns=0` (or add an \
             AppArmor profile with `userns`); in a container, allow `clone` in its seccomp profile"
        }
        _ => "",
    }
}
