//! `user`: the user that weir switches to when root started it, once everything is open that needs
//! root (docs/privileges.md). Called by `run` before it makes threads, and by checks of a
//! configuration.
//!
//! Users are those of /etc/passwd and /etc/group, so that a static program knows them, too. Files
//! that weir makes or reads again later are made as that user from the beginning, or weir warns the
//! operator at the start. So nothing fails for the first time at night. Bound:
//! [`ACCOUNTS_BYTES_MAX`] of each file.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Access, CWD, Mode, OFlags, ResolveFlags, access, openat2};
use rustix::process::{getegid, geteuid};
use weir_config::{Account, Config, UserChoice, closest};
use weir_io::{Identity, give_up, hide_memory};
use weir_proxy::observe::access::Destination;
use weir_proxy::plan::BanVia;

use crate::admin::place;
use crate::failure::Failure;
use crate::log::Event;
use crate::ways;

/// Longest /etc/passwd or /etc/group.
const ACCOUNTS_BYTES_MAX: u64 = 4 << 20;

/// The user that this process switched to.
static BECAME: OnceLock<String> = OnceLock::new();

/// Whether this process runs as a user, or can switch to it.
///
/// # Errors
/// Why not, with a remedy.
pub(crate) fn check(choice: &UserChoice) -> Result<(), Account> {
    let identity = Accounts::of_this_machine().find(choice)?;
    possible(choice, &identity, geteuid().as_raw(), getegid().as_raw())
}

/// Returns the number of a group.
///
/// # Errors
/// No group has this name.
pub(crate) fn group(name: &str) -> Result<u32, Account> {
    Accounts::of_this_machine().group_of(name)
}

/// The same for a process with this user and group.
fn possible(choice: &UserChoice, identity: &Identity, uid: u32, gid: u32) -> Result<(), Account> {
    let says_more = choice.group.is_some() || choice.privileged_ports;
    if identity.uid == 0 && uid == 0 {
        let message =
            "a process that remains root keeps its group and may use all ports".to_owned();
        let help = format!("write user \"{}\" alone, or another user", choice.name);
        return if says_more { Err(Account { word: "name", message, help }) } else { Ok(()) };
    }
    let name = &choice.name;
    if uid != 0 && uid != identity.uid {
        let message = format!("only root can become `{name}`, but weir runs as user {uid}");
        let help = format!(
            "start weir as root, or as `{name}` (systemd: User={name}), or remove `user` to keep \
                the current user"
        );
        return Err(Account { word: "name", message, help });
    }
    if uid != 0 && choice.group.is_some() && gid != identity.gid {
        let message =
            format!("only root can take the group {}, but weir runs in group {gid}", identity.gid);
        let help = "start weir as root, or in that group, or remove `group`".to_owned();
        return Err(Account { word: "group", message, help });
    }
    Ok(())
}

/// The steps before privileges are dropped, and dropping them.
#[derive(Debug, Default)]
pub(crate) struct NewUser(Option<(UserChoice, Option<Identity>)>);

impl NewUser {
    /// Prepares what a configuration says.
    ///
    /// # Errors
    /// The user does not exist, or this process cannot switch to it.
    pub(crate) fn of(config: &Config) -> Result<NewUser, Failure> {
        let Some(choice) = &config.user else { return Ok(NewUser::default()) };
        let failed = |wrong: Account| {
            Failure::Configuration(format!(
                "weir: `user`: {}\n  help: {}\n",
                wrong.message, wrong.help
            ))
        };
        let identity = Accounts::of_this_machine().find(choice).map_err(failed)?;
        let uid = geteuid().as_raw();
        possible(choice, &identity, uid, getegid().as_raw()).map_err(failed)?;
        // For bans in the kernel.
        let via = config.plan.ban().map_or(&BanVia::User, |ban| &ban.via);
        let (keeps_network, keeps_bpf) = (*via != BanVia::User, matches!(via, BanVia::Xdp(_)));
        let keeps_raw = ways::need_raw(&config.plan);
        let identity = Identity { keeps_network, keeps_raw, keeps_bpf, ..identity };
        let identity = (uid == 0 && identity.uid != 0).then_some(identity);
        Ok(NewUser(Some((choice.clone(), identity))))
    }

    /// Whether the process will run as another user.
    pub(crate) fn is_a_change(&self) -> bool {
        matches!(self.0, Some((_, Some(_))))
    }

    /// Drops the privileges of root; call it before there are other threads. `sockets` will belong
    /// to the user. Without `user` this does nothing, and a process that is the user already only
    /// hides its memory.
    ///
    /// # Errors
    /// The operating system's; this process should end.
    pub(crate) fn carry_out(
        &self,
        config: &Config,
        sockets: &weir_worker::Opened,
    ) -> Result<(), Failure> {
        let Some((choice, identity)) = &self.0 else { return Ok(()) };
        let failed = |what: &str, error: &dyn std::fmt::Display| {
            Failure::Privilege(format!(
                "weir: cannot continue as user `{}`: {what}: {error}\n",
                choice.name
            ))
        };
        let Some(identity) = identity else {
            return if geteuid().is_root() {
                Ok(())
            } else {
                hide_memory().map_err(|error| failed("hiding its memory", &error))
            };
        };
        sockets
            .give_to(identity.uid, identity.gid)
            .map_err(|error| failed("giving it the listeners (CAP_CHOWN)", &error))?;
        if config.admin == weir_config::AdminChoice::Auto {
            place::give(identity.uid, identity.gid);
        }
        if let Some(Destination::File(path)) =
            config.plan.access_log.as_ref().map(|log| &log.destination)
        {
            make_log(path, identity);
        }
        give_up(identity).map_err(|refused| failed(refused.step, &refused.error))?;
        let _ = BECAME.set(choice.name.clone());
        Ok(())
    }

    /// Warns about what will fail later, now that weir can check it. `files`: files that weir has
    /// read and may read again.
    pub(crate) fn warn<'a>(&self, config: &Config, files: impl Iterator<Item = &'a Path>) {
        let Some((UserChoice { name, .. }, Some(_))) = &self.0 else { return };
        for file in files.filter(|file| access(*file, Access::READ_OK).is_err()) {
            let file = file.display();
            let sentence = format_args!(
                "user `{name}` cannot read {file}: the content that weir has read remains in \
                    force, but reloads fail, and weir does not see changes; `chgrp` and `chmod \
                    g+r` the file and its folder for that user, or restart weir instead"
            );
            Event::FileUnreadable.says(sentence).with("user", name).with("file", &file).log();
        }
        let log = config.plan.access_log.as_ref().map(|log| &log.destination);
        let Some(Destination::File(path)) = log else { return };
        if let Some(folder) = path
            .parent()
            .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
            && !path.starts_with("/dev")
            && access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err()
        {
            let folder = folder.display();
            let sentence = format_args!(
                "user `{name}` cannot create files in {folder}: the program that rotates the \
                    access log must create the new file for that user (logrotate: create 0640 \
                    {name}), or `chown {name} {folder}`"
            );
            Event::FolderUnwritable.says(sentence).with("user", name).with("folder", &folder).log();
        }
    }

    /// Adds a remedy if the user may not open the access log.
    pub(crate) fn explained(&self, failure: Failure, config: &Config) -> Failure {
        let (text, code) = (failure.to_string(), failure.code());
        match (&self.0, config.plan.access_log.as_ref().map(|log| &log.destination)) {
            (Some((UserChoice { name, .. }, Some(_))), Some(Destination::File(path)))
                if text.contains("access log") && text.contains("Permission denied") =>
            {
                let path = path.display();
                Failure::of(
                    code,
                    format!("{text}  help: weir opens it as user `{name}`: chown {name} {path}\n"),
                )
            }
            _ => failure,
        }
    }

    /// Returns the user for the line that reports the start.
    pub(crate) fn suffix(&self) -> String {
        match &self.0 {
            Some((choice, Some(_))) => format!("; as user {}", choice.name),
            _ => String::new(),
        }
    }

    /// Returns a warning for a weir that remains root although no `user` says so.
    pub(crate) fn note(&self) -> Option<String> {
        let is_root = self.0.is_none() && geteuid().is_root();
        is_root.then(|| {
            "weir runs as root and remains root: write user \"NAME\" to drop root after binding \
                the listeners; user \"root\" silences this warning"
                .to_owned()
        })
    }
}

/// Adds an explanation if a failure comes from dropped privileges.
pub(crate) fn explained(failure: Failure) -> Failure {
    let text = failure.to_string();
    match BECAME.get().and_then(|name| way_out(name, &text)) {
        Some(help) => Failure::of(failure.code(), format!("{text}  help: {help}\n")),
        None => failure,
    }
}

/// Returns a remedy for a failure of a process that dropped root for this user; None: the failure
/// has another cause.
fn way_out(name: &str, text: &str) -> Option<String> {
    if text.contains("CAP_NET_BIND_SERVICE") {
        return Some(format!(
            "weir dropped this capability to run as user `{name}`: restart it with user \"{name}\" \
                privileged-ports=#true to keep the capability"
        ));
    }
    if text.contains("CAP_NET_RAW") {
        return Some(format!(
            "weir dropped root to run as user `{name}`: restart it, and it keeps CAP_NET_RAW if \
                its configuration needs that"
        ));
    }
    let (what, does) = match text {
        _ if !text.contains("Permission denied") => return None,
        _ if text.contains("cannot listen on unix:") => {
            ("create files in the folder of the socket", "binds")
        }
        _ => ("read the file and enter its folder (chgrp, chmod)", "reads"),
    };
    Some(format!(
        "weir dropped root to run as user `{name}`: let that user {what}, or restart weir, which \
            {does} as root first"
    ))
}

/// Makes a missing access log for the user, which will open it, where only root may. An existing
/// log is opened by the user like any other file, and never given away. weir follows no link,
/// because another user may control a folder on the way.
fn make_log(path: &Path, identity: &Identity) {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    // If this fails, opening the log as the user fails as well, and reports the reason.
    if let Ok(file) =
        openat2(CWD, path, flags, Mode::from_raw_mode(0o640), ResolveFlags::NO_SYMLINKS)
    {
        let _ = std::os::unix::fs::fchown(&file, Some(identity.uid), Some(identity.gid));
    }
}

/// Users and groups.
struct Accounts {
    /// passwd(5).
    passwd: String,
    /// group(5).
    group: String,
}

impl Accounts {
    fn of_this_machine() -> Accounts {
        let read = |path: &str| {
            let mut bytes = Vec::new();
            // A machine without these files knows only numbers.
            let _ = File::open(path)
                .and_then(|file| file.take(ACCOUNTS_BYTES_MAX).read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        Accounts { passwd: read("/etc/passwd"), group: read("/etc/group") }
    }

    /// Returns name, uid and gid.
    fn users(&self) -> impl Iterator<Item = (&str, u32, u32)> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            Some((name, fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
        })
    }

    /// Returns name, gid and members.
    fn groups(&self) -> impl Iterator<Item = (&str, u32, &str)> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            Some((name, fields.nth(1)?.parse().ok()?, fields.next().unwrap_or_default()))
        })
    }

    /// Finds a user; groups are those of initgroups(3).
    fn find(&self, choice: &UserChoice) -> Result<Identity, Account> {
        let UserChoice { name, group, privileged_ports } = choice;
        let by_number = || self.users().find(|(_, uid, _)| name.parse() == Ok(*uid));
        let user = self.users().find(|(other, ..)| other == name).or_else(by_number);
        let (user, uid, own) = match (user, name.parse()) {
            (Some((user, uid, gid)), _) => (Some(user), uid, Some(gid)),
            (None, Ok(uid)) => (None, uid, None),
            (None, Err(_)) => {
                let near = closest(name, self.users().map(|(name, ..)| name));
                let help = format!(
                    "create it: useradd --system --no-create-home --shell /usr/sbin/nologin {name}"
                );
                let help = near.map_or(help, |near| format!("did you mean `{near}`?"));
                return Err(Account {
                    word: "name",
                    message: format!("no user `{name}` in /etc/passwd"),
                    help,
                });
            }
        };
        let gid = match group {
            Some(group) => Some(self.group_of(group)?),
            None => own,
        };
        let Some(gid) = gid else {
            let message = format!("user {uid} is not in /etc/passwd, so its group is not known");
            return Err(Account {
                word: "name",
                message,
                help: format!("user \"{uid}\" group=\"GROUP\""),
            });
        };
        let is_member = |members: &str| {
            user.is_some_and(|user| members.split(',').any(|member| member == user))
        };
        let mut groups: Vec<u32> = self
            .groups()
            .filter(|(.., members)| is_member(members))
            .map(|(_, gid, _)| gid)
            .collect();
        groups.push(gid);
        groups.sort_unstable();
        groups.dedup();
        Ok(Identity {
            uid,
            gid,
            groups,
            keeps_ports: *privileged_ports,
            keeps_network: false,
            keeps_raw: false,
            keeps_bpf: false,
        })
    }

    fn group_of(&self, written: &str) -> Result<u32, Account> {
        let by_name = self.groups().find(|(name, ..)| *name == written).map(|(_, gid, _)| gid);
        by_name.or_else(|| written.parse().ok()).ok_or_else(|| {
            let near = closest(written, self.groups().map(|(name, ..)| name));
            let help = format!("create it: groupadd --system {written}");
            let help = near.map_or(help, |near| format!("did you mean `{near}`?"));
            Account { word: "group", message: format!("no group `{written}` in /etc/group"), help }
        })
    }
}

#[cfg(test)]
mod tests {
    //! Proves: names and numbers are found as libc finds them, and errors come with a remedy. How:
    //! written files.

    use super::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd:
                "root:x:0:0:root:/root:/bin/sh\nweir:x:990:980::/:/bin/false\nbad:x:no\n:x:7:7:::\n\
                    ann:x:1000:1000:::\n"
                    .to_owned(),
            group: "root:x:0:\nweir:x:980:\ntls:x:70:ann,weir\nlogs:x:71:weir,\nodd:x\n\
                ann:x:1000:\n"
                .to_owned(),
        }
    }

    fn choice(name: &str, group: Option<&str>) -> UserChoice {
        UserChoice {
            name: name.to_owned(),
            group: group.map(str::to_owned),
            privileged_ports: false,
        }
    }

    #[test]
    fn what_fails_for_want_of_root_has_its_way_out() {
        for (text, says) in [
            ("weir: k.pem: Permission denied (os error 13)", Some("let that user read the file")),
            (
                "weir: cannot listen on unix:/run/a.sock: Permission denied (os error 13); weir \
                    needs permission to",
                Some("let that user create files in the folder"),
            ),
            (
                "weir: cannot listen on 0.0.0.0:80: Permission denied; it needs \
                    CAP_NET_BIND_SERVICE",
                Some("keep the capability"),
            ),
            (
                "weir: `transparent` of a `listen` needs the capability CAP_NET_RAW: no",
                Some("restart it"),
            ),
            ("weir: cannot listen on 0.0.0.0:80: the port is taken", None),
        ] {
            let help = way_out("weir", text);
            assert_eq!(help.is_some(), says.is_some(), "{text}");
            assert!(help.is_none_or(|help| help.contains(says.unwrap_or_default())), "{text}");
        }
    }

    #[test]
    fn users_have_their_groups() {
        let find = |name, group| accounts().find(&choice(name, group)).expect("it is there");
        for name in ["weir", "990"] {
            let found = find(name, None);
            assert_eq!((found.uid, found.gid, &found.groups[..]), (990, 980, &[70, 71, 980][..]));
        }
        let found = find("weir", Some("ann"));
        assert_eq!((found.uid, found.gid, &found.groups[..]), (990, 1000, &[70, 71, 1000][..]));
        assert_eq!(find("4000", Some("70")).groups, [70]);
    }

    #[test]
    fn who_is_not_there_is_named_with_the_way_out() {
        let wrong = |name, group| {
            let Account { word, message, help } =
                accounts().find(&choice(name, group)).expect_err("it is not there");
            format!("{word}: {message}; {help}")
        };
        for (name, group, said) in [
            ("wier", None, "name: no user `wier` in /etc/passwd; did you mean `weir`?"),
            (
                "www",
                None,
                "name: no user `www` in /etc/passwd; create it: useradd --system --no-create-home \
                    --shell /usr/sbin/nologin www",
            ),
            ("weir", Some("log"), "group: no group `log` in /etc/group; did you mean `logs`?"),
            (
                "weir",
                Some("certificates"),
                "group: no group `certificates` in /etc/group; create it: groupadd --system \
                    certificates",
            ),
            (
                "4000",
                None,
                "name: user 4000 is not in /etc/passwd, so its group is not known; user \"4000\" \
                    group=\"GROUP\"",
            ),
        ] {
            assert_eq!(wrong(name, group), said);
        }
    }

    #[test]
    fn only_root_becomes_somebody_else() {
        let may = |name, group, uid, gid| {
            let choice = choice(name, group);
            possible(&choice, &accounts().find(&choice).expect("it is there"), uid, gid)
                .map_err(|wrong| wrong.word)
        };
        assert_eq!(may("weir", Some("ann"), 0, 0), Ok(()));
        assert_eq!(may("weir", None, 990, 5), Ok(()));
        assert_eq!(may("weir", Some("weir"), 990, 980), Ok(()));
        assert_eq!(may("weir", Some("ann"), 990, 980), Err("group"));
        assert_eq!(may("weir", None, 1000, 1000), Err("name"));
        assert_eq!(may("root", None, 1000, 1000), Err("name"));
        assert_eq!(may("root", None, 0, 0), Ok(()));
        assert_eq!(may("root", Some("weir"), 0, 0), Err("name"));
    }
}
