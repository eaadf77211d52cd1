//! Everything a benchmark runs against: the origin, and the contenders in front of it, started and
//! ended.
//!
//! Called by `rounds.rs`, and by loads that start their own. Configurations are written to a
//! private directory that is removed at the end; all traffic stays on loopback, or in namespaces of
//! `nets.rs`. `settings.rs` has the texts.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::cache_settings::{self, Wishes};
use super::get::get;
pub(super) use super::launch::{start_nginx, start_origin, start_program};
use super::nets::Nets;
use super::ports::{free_address, free_addresses};
use super::process::{Process, descriptors};
use super::programs::Programs;
use super::settings::{self, Shape, http2, tls, tuned};
use super::slow_link;
use crate::bench::experiment::cache::ROOM_MIB;
use crate::bench::experiment::cells::{Cell, Load, SMALL};
use crate::bench::experiment::contenders::{self, BEFORE, Contender, WEIR, WeirSettings, What};
use crate::bench::experiment::tls::{GROUP, SUITE, Secure, VERSION};
use crate::bench::experiment::tuning::{Tuning, USUAL};
use crate::bench::record::setting::{Setting, without_ports};
use crate::certificate::{Certificate, KeyKind};

/// Addresses of the origin: a proxy with a connection for each of its clients needs more ports than
/// one address has.
const ORIGIN_ADDRESSES: u8 = 2;
/// Length of that body.
const SMALL_BYTES: u64 = 3;

/// The program that puts load on a contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Generator {
    /// `weir bomb`, measured beside the contender.
    Bomb,
    /// `weir bomb` on this driver, which is the contender itself.
    MeasuredBomb(&'static str),
    /// wrk, which is the contender itself.
    Wrk,
}

/// A started contender.
#[derive(Debug)]
pub(super) struct Running {
    /// Where it listens; several addresses when it is several processes that don't share one.
    pub(super) addresses: Vec<SocketAddr>,
    /// The program that sends it requests.
    pub(super) generator: Generator,
    /// Clients request this server's URL from it, as from a forward proxy.
    pub(super) destination: Option<SocketAddr>,
    /// How clients use TLS with it; None: they don't.
    pub(super) secure: Option<Secure>,
    /// Clients use HTTP/2 with it, with this many streams at a time on each connection; None:
    /// HTTP/1.1.
    pub(super) streams: Option<u32>,
    /// No client stalls.
    pub(super) is_alone: bool,
    processes: Vec<Process>,
    /// The server behind it and the address of that, where it has a separate one.
    origin: Option<(Process, SocketAddr)>,
}

impl Running {
    /// No proxy: the server at this address.
    pub(super) fn direct(address: SocketAddr) -> Running {
        let (addresses, generator) = (vec![address], Generator::Bomb);
        let processes = Vec::new();
        let (destination, secure, streams, origin) = (None, None, None, None);
        Running {
            addresses,
            generator,
            destination,
            secure,
            streams,
            is_alone: false,
            processes,
            origin,
        }
    }

    /// A server that uses TLS at this address, started by others.
    pub(super) fn sealed(address: SocketAddr, secure: Secure) -> Running {
        Running { secure: Some(secure), ..Running::direct(address) }
    }

    /// A proxy with its origin, each with where it listens, which may be in another network
    /// namespace.
    pub(super) fn of(
        (proxy, address): (Process, SocketAddr),
        origin: (Process, SocketAddr),
    ) -> Running {
        Running { processes: vec![proxy], origin: Some(origin), ..Running::direct(address) }
    }

    /// A proxy, with where it listens.
    pub(super) fn alone((proxy, address): (Process, SocketAddr)) -> Running {
        Running { processes: vec![proxy], ..Running::direct(address) }
    }

    /// The same in front of a separate server.
    pub(super) fn before(self, origin: (Process, SocketAddr)) -> Running {
        Running { origin: Some(origin), ..self }
    }

    /// No proxy: a separate server.
    pub(super) fn origin_alone(origin: (Process, SocketAddr)) -> Running {
        let address = origin.1;
        Running { origin: Some(origin), ..Running::direct(address) }
    }

    /// Where it listens, or the first of several.
    pub(super) fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// What weir wrote when it started: which driver runs and why. None for the others.
    pub(super) fn says(&self) -> Option<String> {
        let text = self.processes.first()?.said();
        // After time and level.
        text.lines().find_map(|line| Some(line[line.find("weir: ")?..].to_owned()))
    }

    /// Returns how its processes were started and configured.
    pub(super) fn settings(&self) -> Setting {
        let own = self.origin.iter().map(|(origin, _)| origin);
        setting(self.processes.iter().chain(own))
    }

    /// Returns the beginning of its URLs.
    pub(super) fn scheme(&self) -> &'static str {
        if self.secure.is_some() { "https://" } else { "http://" }
    }

    /// Returns the generator's arguments for TLS.
    pub(super) fn tls_words(&self) -> Vec<String> {
        let Some(secure) = self.secure else { return Vec::new() };
        let mut words = vec!["--insecure".to_owned()];
        words.extend(
            [("version", VERSION), ("suite", SUITE), ("group", GROUP)]
                .map(|(of, it)| format!("--tls-{of}={it}")),
        );
        words.extend(secure.resumes.then(|| "--tls-resume".to_owned()));
        words
    }

    /// Returns the generator's arguments for HTTP/2.
    pub(super) fn http2_words(&self) -> Vec<String> {
        self.streams.map_or(Vec::new(), |streams| {
            vec!["--http2".to_owned(), format!("--streams={streams}")]
        })
    }

    /// Its processes; none for direct.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(Process::family).collect()
    }
}

/// The directory, the origin, and how to start the rest.
#[derive(Debug)]
pub(super) struct Stage {
    directory: PathBuf,
    cores: usize,
    descriptors: u64,
    weir: PathBuf,
    programs: Programs,
    origin: Process,
    /// Where the origin listens: the same port on one address or two.
    addresses: Vec<SocketAddr>,
    origin_is_weir: bool,
}

impl Stage {
    /// Writes files of these lengths and starts the origin: nginx, or weir's own.
    ///
    /// # Errors
    /// A program is missing or doesn't start.
    pub(super) fn open(
        weir: &Path,
        programs: Programs,
        origin_is_weir: bool,
        bodies: &[u64],
    ) -> io::Result<Stage> {
        let directory = std::env::temp_dir().join(format!(
            "weir-bench-{}-{}",
            std::process::id(),
            if origin_is_weir { "weir" } else { "nginx" }
        ));
        fs::create_dir_all(directory.join("www"))?;
        settings::write_files(&directory.join("www"), bodies)?;
        fs::write(directory.join("wrk.lua"), include_str!("wrk.lua"))?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let descriptors = descriptors();
        let log = directory.join("origin.log");
        let (mut origin, addresses) = if origin_is_weir {
            let address = free_address()?;
            (start_origin(weir, address, cores, &[], &log)?, vec![address])
        } else {
            let addresses = free_addresses(ORIGIN_ADDRESSES)?;
            let path = directory.join("origin.conf");
            let workers = (cores as u64, descriptors);
            let text =
                settings::nginx_origin((&directory, "origin"), &addresses, workers, bodies, false);
            fs::write(&path, text)?;
            (start_nginx(&programs, &path, &directory, &log)?, addresses)
        };
        origin.await_listening(addresses[0])?;
        let weir = weir.to_owned();
        Ok(Stage {
            directory,
            cores,
            descriptors,
            weir,
            programs,
            origin,
            addresses,
            origin_is_weir,
        })
    }

    /// The binary that is measured, and that measures.
    pub(super) fn weir(&self) -> &Path {
        &self.weir
    }

    /// Cores that all share.
    pub(super) fn cores(&self) -> usize {
        self.cores
    }

    /// Returns what prevents measuring this contender in this cell, if anything.
    pub(super) fn obstacle(&self, contender: Contender, cell: &Cell) -> Option<String> {
        if let Some(program) = contender.what.program()
            && self.programs.path(program).is_none()
        {
            return Some(contenders::absent(program));
        }
        if (matches!(cell.load, Load::Block(_) | Load::Pep(_)) || cell.load.is_of_bans())
            && let Some(why) = Nets::obstacle(&self.programs, &self.directory)
        {
            return Some(why);
        }
        if matches!(cell.load, Load::Wan(_))
            && let Some(why) = slow_link::obstacle(&self.programs, contender)
        {
            return Some(why);
        }
        if let What::Limiting(limiting) = contender.what
            && !limiting.packets.is_empty()
            && self.programs.path("nft").is_none()
        {
            return Some("nft is not installed".to_owned());
        }
        let clients = cell.load.connections();
        let servers = settings::shape(u64::from(clients), self.descriptors, self.cores)
            .map(|shape| shape.processes);
        if !self.origin_is_weir
            && servers.as_ref().is_ok_and(|processes| *processes > self.cores as u64)
        {
            return Some(format!(
                "{clients} connections would take an origin of more processes than cores"
            ));
        }
        if self.origin_is_weir && contender.what == What::Direct && servers != Ok(1) {
            return Some(format!(
                "{clients} connections are more than the {} descriptors of weir origin",
                self.descriptors
            ));
        }
        let is_one = contender.what == What::Pingora || matches!(cell.load, Load::Tunnel(_));
        match settings::shape(contender.what.descriptors(clients), self.descriptors, self.cores) {
            Ok(shape) if is_one && shape.processes > 1 => {
                Some(format!("{} descriptors for one process", self.descriptors))
            }
            shape => shape.err(),
        }
    }

    /// Starts a contender and waits until it listens.
    ///
    /// # Errors
    /// It doesn't start.
    pub(super) fn start(&self, contender: Contender, cell: &Cell) -> io::Result<Running> {
        self.start_tuned(contender, cell, USUAL)
    }

    /// The same with a setting that a sweep has found, or tries.
    ///
    /// # Errors
    /// As [`Stage::start`].
    pub(super) fn start_tuned(
        &self,
        contender: Contender,
        cell: &Cell,
        tuning: Tuning,
    ) -> io::Result<Running> {
        if cell.load == Load::Stall {
            return self.start_stalling(contender);
        }
        let address = free_address()?;
        let log = self.directory.join(format!("{}.log", contender.name));
        let clients = cell.load.connections();
        let mut origin = None;
        let mut addresses = vec![address];
        let processes = match contender.what {
            What::Direct | What::Wrk | What::Bomb(_) => {
                addresses = vec![self.addresses[0]];
                Vec::new()
            }
            What::Origin(io) => {
                vec![start_origin(&self.weir, address, self.cores, &["--io", io], &log)?]
            }
            What::Nginx | What::NginxForward => {
                vec![self.start_nginx(contender, (cell, tuning), address, &log)?]
            }
            What::HaproxyTcp(_) | What::Caching(_) => {
                return self.start_by_text(contender, address, (clients, tuning));
            }
            What::WeirForward { pool, io } => {
                let text =
                    settings::weir_forward(address, self.addresses[0], self.cores, (pool, io));
                vec![self.start_weir(contender.name, &text, &log)?]
            }
            What::WeirClosing => {
                let (closing, to) = self.start_closing()?;
                origin = Some((closing, to));
                let text = settings::weir(address, to, self.cores, WEIR);
                vec![self.start_weir(contender.name, &text, &log)?]
            }
            What::Weir(weir) => {
                let (own, started) = self.start_weirs(contender, cell, weir)?;
                addresses = own;
                started
            }
            What::Pingora => {
                let words = [address.to_string(), self.cores.to_string()];
                let words: Vec<String> = words
                    .into_iter()
                    .chain(self.addresses.iter().map(ToString::to_string))
                    .collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                vec![start_program(&self.programs, "weir-bench-pingora", &words, &log)?]
            }
            What::Haproxy | What::Envoy => {
                self.start_sharing(contender, (cell, tuning), address, &log)?
            }
            What::Limiting(_)
            | What::Split(_)
            | What::Through(_)
            | What::Rival(_)
            | What::HaproxyCapped(_) => {
                let name = contender.name;
                return Err(io::Error::other(format!("{name} is started by its own load only")));
            }
        };
        let destination = contender.what.is_forward().then_some(self.addresses[0]);
        let generator = generator(contender);
        let secure = cell.secure.filter(|_| !contender.is_plain());
        let streams = cell.streams.filter(|_| !contender.is_http1());
        let is_alone = contender.is_alone();
        self.await_all(Running {
            addresses,
            generator,
            destination,
            secure,
            streams,
            is_alone,
            processes,
            origin,
        })
    }

    /// Starts a proxy with this configuration and waits until it listens.
    ///
    /// # Errors
    /// It doesn't start, or is not a proxy.
    pub(super) fn start_with(
        &self,
        contender: Contender,
        listen: SocketAddr,
        text: &str,
    ) -> io::Result<Running> {
        self.start_looked_at(contender, listen, text, None)
    }

    /// Does the same; weir has its admin socket at this path.
    ///
    /// # Errors
    /// As [`Stage::start_with`].
    pub(super) fn start_looked_at(
        &self,
        contender: Contender,
        listen: SocketAddr,
        text: &str,
        admin: Option<&Path>,
    ) -> io::Result<Running> {
        let log = self.directory.join(format!("{}.log", contender.name));
        let program = contender.what.program();
        let process = match contender.what {
            _ if program == Some("nginx") => {
                start_nginx(&self.programs, &self.file(contender, text)?, &self.directory, &log)?
            }
            _ if program == Some("haproxy") => start_program(
                &self.programs,
                "haproxy",
                &["-db", "-f", &self.file(contender, text)?.to_string_lossy()],
                &log,
            )?,
            _ if program == Some("varnishd") => {
                let words = cache_settings::varnish_words(
                    listen,
                    (&self.file(contender, text)?, text),
                    self.cores,
                )?;
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                start_program(&self.programs, "varnishd", &words, &log)?
            }
            What::Weir(_) | What::WeirForward { .. } | What::Caching(_) => {
                self.start_weir_at(&self.weir, contender.name, text, (&log, admin))?
            }
            _ => return Err(io::Error::other(format!("cannot set {} like this", contender.name))),
        };
        self.await_all(Running { processes: vec![process], ..Running::direct(listen) })
    }

    /// Returns how many processes a contender needs for this many clients.
    fn shape(&self, contender: Contender, clients: u32) -> io::Result<Shape> {
        settings::shape(contender.what.descriptors(clients), self.descriptors, self.cores)
            .map_err(io::Error::other)
    }

    /// Starts nginx as a reverse or as a forward proxy.
    fn start_nginx(
        &self,
        contender: Contender,
        (cell, tuning): (&Cell, Tuning),
        address: SocketAddr,
        log: &Path,
    ) -> io::Result<Process> {
        let shape = self.shape(contender, cell.load.connections())?;
        let workers = (shape.processes.max(self.cores as u64), self.descriptors);
        let text = if contender.what == What::NginxForward {
            settings::nginx_forward(&self.directory, address, workers)
        } else {
            let text = settings::nginx_proxy(&self.directory, address, &self.addresses, workers);
            self.sealed(contender, cell, tuned(text, tuning))?
        };
        start_nginx(&self.programs, &self.file(contender, &text)?, &self.directory, log)
    }

    /// Starts as many processes of weir as its descriptors require, each on its own address.
    fn start_weirs(
        &self,
        contender: Contender,
        cell: &Cell,
        weir: WeirSettings,
    ) -> io::Result<(Vec<SocketAddr>, Vec<Process>)> {
        let clients = cell.load.connections();
        let shape = self.shape(contender, clients)?;
        let addresses = free_addresses(shape.processes as u8)?;
        let program = if weir.is_before { self.programs.path(BEFORE) } else { None };
        let program = program.as_deref().unwrap_or(&self.weir);
        let text =
            |at| settings::weir(at, self.addresses[0], shape.threads, weir.for_clients(clients));
        let started = addresses.iter().enumerate().map(|(nth, at)| {
            let name = format!("{}.{nth}", contender.name);
            let log = self.directory.join(format!("{name}.log"));
            let text = self.sealed(contender, cell, text(*at))?;
            self.start_weir_at(program, &name, &text, (&log, None))
        });
        let started = started.collect::<io::Result<_>>()?;
        Ok((addresses, started))
    }

    /// Starts as many processes as its descriptors require, all on one address.
    fn start_sharing(
        &self,
        contender: Contender,
        (cell, tuning): (&Cell, Tuning),
        address: SocketAddr,
        log: &Path,
    ) -> io::Result<Vec<Process>> {
        let shape = self.shape(contender, cell.load.connections())?;
        let is_envoy = contender.what == What::Envoy;
        let text = if is_envoy {
            settings::envoy(address, &self.addresses)
        } else {
            settings::haproxy(address, &self.addresses, shape, self.descriptors)
        };
        let file = self.file(contender, &self.sealed(contender, cell, tuned(text, tuning))?)?;
        let (path, threads) = (file.to_string_lossy(), shape.threads.to_string());
        let start = |_| match is_envoy {
            true => {
                let words =
                    ["-c", &path, "--concurrency", &threads, "-l", "off", "--disable-hot-restart"];
                start_program(&self.programs, "envoy", &words, log)
            }
            false => start_program(&self.programs, "haproxy", &["-db", "-f", &path], log),
        };
        (0..shape.processes).map(start).collect()
    }

    /// Starts one process that its configuration fully describes.
    fn start_by_text(
        &self,
        contender: Contender,
        listen: SocketAddr,
        (clients, tuning): (u32, Tuning),
    ) -> io::Result<Running> {
        let place = (self.directory(), self.cores, self.descriptors);
        let text = match contender.what {
            What::HaproxyTcp(pipes) => settings::haproxy_tcp(
                listen,
                self.addresses[0],
                self.cores,
                self.descriptors,
                pipes,
            ),
            What::Caching(cacher) => cache_settings::text(
                cacher,
                place,
                (listen, &self.addresses),
                Wishes::plain(ROOM_MIB, clients),
            )?,
            _ => return Err(io::Error::other(format!("cannot set {} like this", contender.name))),
        };
        self.start_with(contender, listen, &tuned(text, tuning))
    }

    /// Starts a separate origin that pauses once, five seconds after the first request.
    fn start_stalling(&self, contender: Contender) -> io::Result<Running> {
        let address = free_address()?;
        let log = self.directory.join("stalling.log");
        let stall = ["--misbehave", "freeze=1000:at=5000"];
        let origin = start_origin(&self.weir, address, 1, &stall, &log)?;
        let processes = vec![origin];
        let generator = generator(contender);
        self.await_all(Running { processes, generator, ..Running::direct(address) })
    }

    /// Returns the settings of a contender in this cell: with TLS and HTTP/2 for its clients, if
    /// they use it.
    fn sealed(&self, contender: Contender, cell: &Cell, text: String) -> io::Result<String> {
        let secure = cell.secure.filter(|_| !contender.is_plain());
        let text = match secure {
            Some(secure) => tls::sealed(contender.what, &text, &self.certificate(secure.key)?)?,
            None => text,
        };
        match cell.streams {
            Some(_) if !contender.is_http1() => {
                http2::spoken(contender.what, &text, secure.is_some())
            }
            _ => Ok(text),
        }
    }

    /// Returns the certificate that all have; made when it is first needed.
    ///
    /// # Errors
    /// It can't be made, or written.
    pub(super) fn certificate(&self, key: KeyKind) -> io::Result<tls::Files> {
        let file = |end: &str| self.directory.join(format!("{key:?}.{end}"));
        let files = tls::Files { certificate: file("crt"), key: file("key"), both: file("pem") };
        if !files.both.exists() {
            let made =
                Certificate::local(key, Ipv4Addr::LOCALHOST.into()).map_err(io::Error::other)?;
            fs::write(&files.certificate, &made.certificate)?;
            fs::write(&files.key, &made.key)?;
            fs::write(&files.both, made.certificate + &made.key)?;
        }
        Ok(files)
    }

    fn await_all(&self, mut running: Running) -> io::Result<Running> {
        let Running { addresses, processes, .. } = &mut running;
        let addresses = addresses.iter().cycle();
        processes
            .iter_mut()
            .zip(addresses)
            .try_for_each(|(process, at)| process.await_listening(*at))?;
        Ok(running)
    }

    fn file(&self, contender: Contender, text: &str) -> io::Result<PathBuf> {
        let file = self.directory.join(format!("{}.conf", contender.name));
        // Envoy recognises its formats by their file extensions.
        let file = if contender.what == What::Envoy { file.with_extension("json") } else { file };
        fs::write(&file, text)?;
        Ok(file)
    }

    fn start_weir(&self, name: &str, text: &str, log: &Path) -> io::Result<Process> {
        self.start_weir_at(&self.weir, name, text, (log, None))
    }

    fn start_weir_at(
        &self,
        weir: &Path,
        name: &str,
        text: &str,
        place: (&Path, Option<&Path>),
    ) -> io::Result<Process> {
        let (log, admin) = place;
        let file = self.directory.join(format!("{name}.kdl"));
        fs::write(&file, text)?;
        let admin = admin.map_or_else(|| "off".into(), Path::to_string_lossy);
        Process::start(weir, &["run", "--admin", &admin, "-c", &file.to_string_lossy()], log)
    }

    /// Starts another origin, which closes each connection after 100 requests.
    fn start_closing(&self) -> io::Result<(Process, SocketAddr)> {
        let address = free_address()?;
        let (path, log) = (self.directory.join("closing.conf"), self.directory.join("closing.log"));
        let workers = (self.cores as u64, self.descriptors);
        let text =
            settings::nginx_origin((&self.directory, "closing"), &[address], workers, &[], true);
        fs::write(&path, text)?;
        let mut process = start_nginx(&self.programs, &path, &self.directory, &log)?;
        process.await_listening(address)?;
        Ok((process, address))
    }

    /// Returns the target of a request for a body of this many bytes.
    pub(super) fn path(&self, bytes: u64) -> String {
        match (bytes, self.origin_is_weir) {
            (SMALL_BYTES, _) => SMALL.to_owned(),
            (_, true) => format!("/?size={bytes}"),
            (_, false) => format!("/{bytes}"),
        }
    }

    /// Where configurations and logs are.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Descriptors that a process may have.
    pub(super) fn descriptors(&self) -> u64 {
        self.descriptors
    }

    /// Where the origin listens, or the first of its addresses.
    pub(super) fn origin_address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Returns how the origin was started and configured.
    pub(super) fn origin_settings(&self) -> Setting {
        setting(std::iter::once(&self.origin))
    }

    /// Where programs are.
    pub(super) fn programs(&self) -> &Programs {
        &self.programs
    }

    /// A file of ours, removed at the end.
    pub(super) fn scratch(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The origin's processes.
    pub(super) fn origin_pids(&self, running: &Running) -> Vec<u32> {
        running.origin.as_ref().map_or(&self.origin, |(own, _)| own).family()
    }

    /// Returns the connections that the origin has accepted so far, including that of this query.
    ///
    /// # Errors
    /// The origin doesn't respond.
    pub(super) fn origin_accepts(&self, running: &Running) -> io::Result<u64> {
        let own = running.origin.as_ref().map(|(_, address)| *address);
        let text = get(own.unwrap_or(self.addresses[0]), "/__stats")?;
        // weir's origin reports it as JSON, nginx in the second or first line of its text.
        let after = |word: &str| text.split(word).nth(1);
        let number = after("\"connects\":")
            .or_else(|| after("requests\n"))
            .or_else(|| after("server accepts"));
        number
            .and_then(|rest| {
                rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
            })
            .ok_or_else(|| io::Error::other(format!("the origin's counters can't be read: {text}")))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
        cache_settings::clean();
    }
}

/// The caller fills in the contender and the cells.
fn setting<'a>(processes: impl Iterator<Item = &'a Process> + Clone) -> Setting {
    let mut configurations: Vec<String> =
        processes.clone().filter_map(Process::configuration).collect();
    // Several processes of a contender differ only in addresses.
    configurations.dedup_by_key(|text| without_ports(text));
    let commands = processes.map(Process::command_line).collect();
    Setting { of: String::new(), cells: Vec::new(), commands, configurations }
}

fn generator(contender: Contender) -> Generator {
    match contender.what {
        What::Wrk => Generator::Wrk,
        What::Bomb(io) => Generator::MeasuredBomb(io),
        _ => Generator::Bomb,
    }
}
