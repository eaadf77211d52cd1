//! `weir cache`: shows what a running weir has stored and why a response comes from there or not,
//! and purges. Uses its admin socket (docs/cache.md).

use clap::{Args, Subcommand, ValueEnum};

use crate::admin::cache::{Cache, CacheTop, CachedKey, Explained, Kept, Line, MissedKey, Purged};
use crate::admin::cache_words::{authority, header, url};
use crate::admin::document::Latency;
use crate::client::{Client, value};
use crate::failure::Failure;
use crate::status::cache::{summary, words};
use crate::status::figures::{bytes, count, time};
use crate::status::overview::Look;
use crate::status::table::{Column, Row, number, table, text};
use crate::status::{PlaceArgs, look};
use crate::terminal;

/// `weir cache`.
#[derive(Args, Debug)]
#[command(after_help = "\
Servers, and `cache` of routes in the configuration, decide what is stored and for how long.

Example:
  weir cache explain https://example.org/page && weir cache purge --tag product-17")]
pub(crate) struct CacheArgs {
    /// Where the admin socket is.
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// What to do.
    #[command(subcommand)]
    pub(crate) order: Order,
}

/// What can be done.
#[derive(Subcommand, Debug)]
pub(crate) enum Order {
    /// Show the fill level, results of requests, and reasons for not storing
    #[command(after_help = "Example:\n  weir cache stats --json | jq .requests")]
    Stats {
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
    /// List entries by hits, size or `Vary` variants, or misses with reasons
    #[command(after_help = "\
With --by misses, lists what weir requested from servers since the start, stored or not. The \
reason says why weir requested it the last time, or why the response is not stored. weir \
remembers only a few of many URLs: rare misses may be absent, and a count with ~ may be too high.

Example:
  weir cache top --by bytes -n 20 && weir cache top --by misses")]
    Top {
        /// Sort order
        #[arg(long, value_enum, default_value_t = By::Hits)]
        by: By,
        /// Number of entries, up to 1000
        #[arg(
            short = 'n',
            value_name = "COUNT",
            default_value_t = 10,
            value_parser = clap::value_parser!(u32).range(1..=1000)
        )]
        most: u32,
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
    /// Purge responses, including those being fetched
    #[command(after_help = "\
When the command returns, no worker serves the purged responses. With --soft they become stale \
instead: weir serves them while it fetches them again, where that is allowed.

Example:
  weir cache purge https://example.org/page && \
weir cache purge --prefix https://example.org/shop/ --soft")]
    Purge {
        /// Which answers
        #[command(flatten)]
        what: What,
        /// Mark entries stale instead of removing them
        #[arg(long)]
        soft: bool,
    },
    /// Explain what weir would do with a request: route, key, stored entries
    #[command(after_help = "\
Fetches nothing and changes nothing. Give the URL as a client would: the scheme matters. Repeat \
-H as often as needed.

Example:
  weir cache explain https://example.org/page -H 'Accept-Language: de'")]
    Explain {
        /// URL of the request
        #[arg(value_parser = url)]
        url: String,
        /// Header of the request; may be repeated
        #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = header)]
        headers: Vec<String>,
        /// Print JSON from the admin socket
        #[arg(long)]
        json: bool,
    },
}

/// Which answers are to go.
#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct What {
    /// Purge all responses of this URL
    #[arg(value_parser = url)]
    url: Option<String>,
    /// Purge every URL with this prefix
    #[arg(long, value_name = "URL", value_parser = url)]
    prefix: Option<String>,
    /// Purge this host; give its port unless it is the default port
    #[arg(long, value_parser = authority)]
    host: Option<String>,
    /// Purge all responses with this tag
    #[arg(long)]
    tag: Option<String>,
    /// Purge everything
    #[arg(long)]
    all: bool,
}

/// The order of a list.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Hits,
    Bytes,
    Answers,
    Misses,
}

/// Runs the verb.
///
/// # Errors
/// weir does not reply, stores nothing there, or the argument makes no sense.
pub(crate) fn cache(arguments: &CacheArgs) -> Result<(), Failure> {
    let client = Client::new(arguments.place.admin.as_deref());
    let (json, shown, answer) = match &arguments.order {
        Order::Stats { json } => {
            let (cache, answer) = client.get::<Cache>("/v1/cache")?;
            (*json, stats(&cache), answer)
        }
        Order::Top { by, most, json } => {
            let by = match by {
                By::Hits => "hits",
                By::Bytes => "bytes",
                By::Answers => "answers",
                By::Misses => "misses",
            };
            let (list, answer) =
                client.get::<CacheTop>(&format!("/v1/cache/top?by={by}&most={most}"))?;
            (*json, if by == "misses" { missed(&list, look()) } else { top(&list, look()) }, answer)
        }
        Order::Purge { what, soft } => {
            client.post::<Purged>(&purge_path(what, *soft))?;
            return Ok(());
        }
        Order::Explain { url, headers, json } => {
            let headers: String =
                headers.iter().map(|header| format!("&header={}", value(header))).collect();
            let path = format!("/v1/cache/explain?url={}{headers}", value(url));
            let (explained, answer) = client.get::<Explained>(&path)?;
            (*json, explain(&explained), answer)
        }
    };
    terminal::print(if json { &answer } else { &shown });
    Ok(())
}

fn purge_path(what: &What, soft: bool) -> String {
    let named =
        [("url", &what.url), ("prefix", &what.prefix), ("host", &what.host), ("tag", &what.tag)];
    let named = named
        .into_iter()
        .find_map(|(name, text)| Some(format!("{name}={}", value(text.as_ref()?))));
    let soft = if soft { "&soft=on" } else { "" };
    format!("/v1/cache/purge?{}{soft}", named.unwrap_or_else(|| "all=on".to_owned()))
}

fn stats(cache: &Cache) -> String {
    let figures = &cache.figures;
    let mut out = format!("stored     {}\n", summary(figures));
    out += &format!("requests   {}\n", words(&figures.requests));
    out += &format!("not stored {}\n", words(&figures.not_stored));
    out += &format!("gone       {}\n", words(&figures.gone));
    let Latency { count: hits, p50_us, p99_us, max_us, .. } = figures.hit_latency;
    if hits > 0 {
        let [median, p99, longest] = [p50_us, p99_us, max_us].map(time);
        out += &format!("hits take  {median}, 99 of 100 up to {p99}, the longest {longest}\n");
    }
    if figures.purges > 0 {
        out += &format!("purges     {} not yet applied to all responses\n", count(figures.purges));
    }
    if let Some(kept) = &figures.snapshot {
        out += &format!("snapshot   {}\n", snapshot(kept));
    }
    out
}

fn snapshot(kept: &Kept) -> String {
    let written = match kept.written {
        0 => "not written yet".to_owned(),
        _ => format!("{} responses, {}", count(kept.answers), bytes(kept.bytes)),
    };
    let restored = match (kept.restored, kept.left_out) {
        (0, 0) => String::new(),
        (restored, left_out) => {
            format!(
                "; at the start {} were restored and {} skipped",
                count(restored),
                count(left_out)
            )
        }
    };
    let problem = if kept.problem.is_empty() {
        String::new()
    } else {
        format!("; {}", terminal::printable(&kept.problem))
    };
    written + &restored + &problem
}

fn top(list: &CacheTop, look: Look) -> String {
    if list.keys.is_empty() {
        return "nothing is stored\n".to_owned();
    }
    let columns: [Column; 6] = [
        text("URL"),
        text("UPSTREAM"),
        number("STATUS", 2),
        number("HITS", 0),
        number("BYTES", 0),
        number("ANSWERS", 1),
    ];
    let row = |one: &CachedKey| {
        let cells = vec![
            terminal::printable(&one.url).into(),
            terminal::printable(&one.upstream).into(),
            one.status.to_string().into(),
            count(one.hits).into(),
            bytes(one.bytes).into(),
            count(one.answers).into(),
        ];
        Row { cells, below: None }
    };
    table(&columns, &list.keys.iter().map(row).collect::<Vec<_>>(), 0, look.width, look.colour)
}

fn missed(list: &CacheTop, look: Look) -> String {
    if list.missed.is_empty() {
        return "weir requested nothing from servers\n".to_owned();
    }
    let columns: [Column; 4] = [text("URL"), text("UPSTREAM"), number("MISSES", 0), text("WHY")];
    let row = |one: &MissedKey| {
        let about = if one.over > 0 { "~" } else { "" };
        let cells = vec![
            terminal::printable(&one.url).into(),
            terminal::printable(&one.upstream).into(),
            format!("{about}{}", count(one.misses)).into(),
            terminal::printable(&one.why).into(),
        ];
        Row { cells, below: None }
    };
    table(&columns, &list.missed.iter().map(row).collect::<Vec<_>>(), 0, look.width, look.colour)
}

fn explain(explained: &Explained) -> String {
    let width = explained.lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let line =
        |Line { name, text }: &Line| format!("{name:width$}  {}\n", terminal::printable(text));
    explained.lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    //! Proves: what people see of the store, and the requests to the admin socket for a purge. How:
    //! made-up documents.

    use super::*;
    use crate::admin::cache::CacheFigures;

    #[test]
    fn what_people_see() {
        let key = CachedKey {
            url: "https://a.test/page".to_owned(),
            upstream: "app".to_owned(),
            status: 200,
            answers: 2,
            hits: 12_345,
            bytes: 4096,
        };
        let look = Look { width: 100, colour: false };
        let told = top(&CacheTop { keys: vec![key], ..CacheTop::default() }, look);
        assert!(
            told.lines().nth(1).is_some_and(|line| line.starts_with("https://a.test/page  app")),
            "{told}"
        );
        assert!(told.contains("12.3k"), "{told}");
        assert_eq!(top(&CacheTop::default(), look), "nothing is stored\n");
        let (url, upstream) = ("https://a.test/me".to_owned(), "app".to_owned());
        let key = MissedKey { url, upstream, misses: 1234, over: 0, why: "private".to_owned() };
        let about = MissedKey { over: 7, ..key.clone() };
        let told = missed(&CacheTop { missed: vec![key, about], ..CacheTop::default() }, look);
        let words = |nth: usize| {
            told.lines().nth(nth).map(|line| line.split_whitespace().collect::<Vec<_>>())
        };
        assert_eq!(
            words(1).as_deref(),
            Some(&["https://a.test/me", "app", "1234", "private"][..]),
            "{told}"
        );
        assert_eq!(
            words(2).as_deref(),
            Some(&["https://a.test/me", "app", "~1234", "private"][..]),
            "{told}"
        );
        assert_eq!(missed(&CacheTop::default(), look), "weir requested nothing from servers\n");
        let requests = [("hit", 3), ("miss", 1), ("stale", 0)]
            .map(|(word, count)| (word.to_owned(), count))
            .into();
        let mut figures =
            CacheFigures { requests, answers: 2, size_bytes: 1 << 20, ..CacheFigures::default() };
        let told = stats(&Cache { figures: figures.clone(), ..Cache::default() });
        assert!(!told.contains("hits take"), "{told}");
        let some = |us| Some(us);
        figures.hit_latency = Latency {
            count: 3,
            p50_us: some(40),
            p99_us: some(1500),
            max_us: some(2000),
            ..Latency::default()
        };
        let told = stats(&Cache { figures, ..Cache::default() });
        assert!(
            told.contains("hits take  40us, 99 of 100 up to 1.5ms, the longest 2.0ms\n"),
            "{told}"
        );
        assert!(
            told.contains("requests   hit 3  miss 1\n") && told.contains("gone       -\n"),
            "{told}"
        );
        let kept = Kept {
            written: 1,
            answers: 3,
            bytes: 4096,
            restored: 2,
            left_out: 1,
            problem: "x".to_owned(),
        };
        let expected = "3 responses, 4096B; at the start 2 were restored and 1 skipped; x";
        assert_eq!(snapshot(&kept), expected);
        assert_eq!(snapshot(&Kept::default()), "not written yet");
    }

    #[test]
    fn lines_of_an_explanation_stand_below_each_other() {
        let line = |name: &str, text: &str| Line { name: name.to_owned(), text: text.to_owned() };
        let lines = vec![line("key", "a"), line("lifetime", "60 s\u{1b}")];
        let told = explain(&Explained { lines, ..Explained::default() });
        assert_eq!(told, "key       a\nlifetime  60 s?\n");
    }

    #[test]
    fn paths_of_purges() {
        let all = What { url: None, prefix: None, host: None, tag: None, all: true };
        assert_eq!(purge_path(&all, true), "/v1/cache/purge?all=on&soft=on");
        let tag = What { tag: Some("a b&c".to_owned()), all: false, ..all };
        assert_eq!(purge_path(&tag, false), "/v1/cache/purge?tag=a%20b%26c");
    }
}
