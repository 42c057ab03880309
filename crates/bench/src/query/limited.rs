//! Searches by limited tokens, compared with searches by an unlimited token, over HTTP.
//!
//! A limited reader looks past what it may not read, so a search has two measures. *Same entries*:
//! an unlimited token selects the same entries with a filter by minion, where the operation has
//! one. *Without a filter*: the same request by an unlimited token, which needs fewer entries for a
//! full page, and returns more where there is no page. Requests alternate, because both must see
//! the same host. Ratios are of medians, each less the median of a request that finds nothing
//! without reading: the time of HTTP would hide a slow search.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use saltcellar::base::limits::LIST_ROWS_MAX;
use saltcellar_testkit::usage::Durations;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use ureq::Agent;

use super::QueryBench;
use crate::calls::Jobs;
use crate::child::TIMEOUT;
use crate::report::{Row, rounded};

/// Bounds of the number of runs of each request.
const RUNS: (usize, usize) = (15, 300);

/// Jobs that are listed, and asked for one after the other. For a hundredth of the minions, about
/// 2,500 must be examined for them.
const JOBS: usize = 50;

/// The limits: key, glob over minions. Ids end in random digits.
const LIMITS: [(&str, &str); 2] = [("half", "*[02468]"), ("hundredth", "*00")];

/// A request: path and query.
type Request = (String, Vec<(&'static str, String)>);

/// A search: key, title, requests of the limited token, and requests of an unlimited token for the
/// same entries, if a filter selects them.
struct Search {
    key: &'static str,
    title: &'static str,
    requests: Vec<Request>,
    same: Option<Vec<Request>>,
}

impl Search {
    /// A search whose unlimited equivalent has an additional parameter.
    fn new(
        key: &'static str,
        title: &'static str,
        path: &str,
        query: &[(&'static str, &str)],
        same: Option<(&'static str, String)>,
    ) -> Self {
        // Owned, because a search outlives the limit that it was made for.
        let query: Vec<_> = query
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();

        let with = |more: Option<(&'static str, String)>| {
            let query = query.iter().cloned().chain(more).collect();
            vec![(path.to_owned(), query)]
        };

        Self {
            key,
            title,
            requests: with(None),
            same: same.map(|same| with(Some(same))),
        }
    }

    fn all(glob: &str) -> Vec<Self> {
        // What the token's limit selects, as a filter of the request.
        let of_limit = || Some(("match", json!([{ "minion": glob }]).to_string()));
        let events = |key, title, query: &[(&'static str, &str)]| {
            Self::new(key, title, "events", query, of_limit())
        };

        let page = ("limit", "100");

        vec![
            events("newest_events", "newest 100 events", &[page]),
            events(
                "tag_found",
                "tag glob, newest 100",
                &[page, ("tag", "salt/job/*/ret/*")],
            ),
            events(
                "tag_absent",
                "tag glob, nothing found",
                &[page, ("tag", "*/ret/absent-*")],
            ),
            events(
                "tag_heads",
                "tag glob through every head",
                &[page, ("tag", "salt/job/19991231*/ret/*")],
            ),
            events(
                "where_found",
                "where, newest 100",
                &[page, ("where", "data.fun == \"state.apply\"")],
            ),
            events(
                "where_absent",
                "where, nothing found in one read",
                &[page, ("where", "data.retcode == 77")],
            ),
            Self::new(
                "minions",
                "latest of 50 minions",
                "minions",
                &[("limit", "50")],
                Some(("minion", glob.to_owned())),
            ),
        ]
    }
}

/// A client of the HTTP listener.
struct Reader {
    agent: Agent,
    address: String,
    token: String,
}

impl Reader {
    fn ask(&self, (path, query): &Request) -> anyhow::Result<(Duration, Vec<u8>)> {
        let request = self
            .agent
            .get(format!("http://{}/api/v1/{path}", self.address))
            .query_pairs(query.iter().map(|(name, value)| (*name, value.as_str())))
            .header("authorization", &self.token);

        let started = Instant::now();
        let mut answer = request.call().with_context(|| format!("ask for {path}"))?;
        let body = answer.body_mut().read_to_vec().context("read a response")?;
        Ok((started.elapsed(), body))
    }

    fn answer<T: DeserializeOwned>(&self, request: &Request) -> anyhow::Result<T> {
        serde_json::from_slice(&self.ask(request)?.1).context("parse a response")
    }
}

impl QueryBench<'_> {
    /// The address of the HTTP listener; `None` if the configuration has none.
    fn http_address(&mut self) -> anyhow::Result<Option<String>> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // The configuration contains no listener.
            let Some(http) = self.daemon.status()?.http else {
                return Ok(None);
            };

            if let Some(address) = http.open() {
                return Ok(Some(address));
            }

            ensure!(Instant::now() < deadline, "open the HTTP listener");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A client with a new token, limited to the minions of a glob.
    fn reader(&mut self, address: &str, name: &str, glob: Option<&str>) -> anyhow::Result<Reader> {
        #[derive(Deserialize)]
        struct NewToken {
            token: String,
        }

        let limits = glob.map(|glob| ("minions", json!(glob)));
        let of_token = [("name", json!(name)), ("scope", json!("read"))];
        let args: Json = of_token.into_iter().chain(limits).collect();
        let NewToken { token } = self.daemon.read("token_create", &args)?;

        Ok(Reader {
            agent: Agent::config_builder()
                .timeout_global(Some(TIMEOUT))
                .build()
                .into(),
            address: address.to_owned(),
            // Tokens last as long as the state directory, which is temporary.
            token: format!("Bearer {token}"),
        })
    }

    /// Measures all searches under each limit; nothing without a listener.
    pub(crate) fn limited_searches(&mut self) -> anyhow::Result<Vec<Row>> {
        let Some(address) = self.http_address()? else {
            return Ok(Vec::new());
        };

        let seconds = self.args.limited_seconds;
        let whole = self.reader(&address, "whole", None)?;
        let mut rows = Vec::new();

        for (key, glob) in LIMITS {
            let limited = self.reader(&address, key, Some(glob))?;
            let mut searches = Search::all(glob);
            searches.extend(jobs_of(&limited, &whole)?);

            for search in searches {
                self.report
                    .progress(|| format!("limited to {glob}: {}", search.title))?;
                rows.push(compare(&limited, &whole, (key, glob), &search, seconds)?);
            }
        }
        Ok(rows)
    }
}

/// Searches for jobs that the limited token may read: their list, and each of them.
fn jobs_of(limited: &Reader, whole: &Reader) -> anyhow::Result<Vec<Search>> {
    let list = |reader: &Reader, limit: usize| {
        let page: Jobs = reader.answer(&list_of_jobs(limit))?;
        let jids = page.jobs.into_iter().map(|job| job.jid);
        anyhow::Ok(jids.collect::<Vec<_>>())
    };

    let own = list(limited, JOBS)?;

    // The unlimited list for the same jobs ends at the same job, if that is in one page.
    let all = list(whole, LIST_ROWS_MAX)?;
    let seen = own
        .last()
        .and_then(|last| all.iter().position(|jid| jid == last));
    let same = seen.map(|at| vec![list_of_jobs(at + 1)]);

    // The job with many minions has twice or a hundred times as many returns for the unlimited
    // token.
    let narrow = own.iter().filter(|jid| *jid != super::WIDE);
    let each: Vec<_> = narrow
        .map(|jid| (format!("jobs/{jid}"), Vec::new()))
        .collect();

    let mut searches = vec![Search {
        key: "newest_jobs",
        title: "newest 50 jobs",
        requests: vec![list_of_jobs(JOBS)],
        same,
    }];

    if !each.is_empty() {
        searches.push(Search {
            key: "one_job",
            title: "one job's returns",
            same: Some(each.clone()),
            requests: each,
        });
    }

    Ok(searches)
}

fn list_of_jobs(limit: usize) -> Request {
    ("jobs".to_owned(), vec![("limit", limit.to_string())])
}

/// Measures a search by all three, alternating.
fn compare(
    limited: &Reader,
    whole: &Reader,
    (limit, glob): (&str, &str),
    search: &Search,
    seconds: f64,
) -> anyhow::Result<Row> {
    // It ends before it reads: nothing arrived in the future.
    let nothing: Request = (
        "events".to_owned(),
        vec![("since", "2099-01-01T00:00:00Z".to_owned())],
    );
    let at = |requests: &[Request], n: usize| {
        let found = requests.get(n % requests.len().max(1));
        found.cloned().context("a request of the search")
    };

    // In the first run nothing is known of the limit yet.
    let (first, _) = limited.ask(&at(&search.requests, 0)?)?;

    let mut times: [Vec<Duration>; 4] = Default::default();
    let started = Instant::now();
    for n in 0..RUNS.1 {
        if n >= RUNS.0 && started.elapsed().as_secs_f64() > seconds {
            break;
        }
        // In turns, because all of them must see the same host.
        let [of_nothing, of_limited, of_same, of_whole] = &mut times;
        of_nothing.push(limited.ask(&nothing)?.0);
        of_limited.push(limited.ask(&at(&search.requests, n)?)?.0);
        if let Some(same) = &search.same {
            of_same.push(whole.ask(&at(same, n)?)?.0);
        }
        of_whole.push(whole.ask(&at(&search.requests, n)?)?.0);
    }

    let runs = times[1].len() as u64;
    let [of_nothing, of_limited, of_same, of_whole] =
        times.map(|times| times.into_iter().collect::<Durations>().ms(0.5));
    let net = |ms: Option<f64>| Some((ms? - of_nothing?).max(0.0));

    let ratio = |to: Option<f64>| {
        let (own, other) = (net(of_limited)?, net(to)?);
        // Nothing is left to compare without the time of HTTP.
        (other > 0.0).then(|| own / other)
    };

    Ok(Row::default()
        .text("MINIONS", "minions", glob)
        .json("limit", limit)
        .json("search", search.key)
        .label("SEARCH", search.title)
        .count("RUNS", "asked", runs)
        .json(
            "nothing_ms",
            of_nothing.map_or(Json::Null, |ms| rounded(ms, 3)),
        )
        .number("FIRST MS", "first_ms", 3, first.as_secs_f64() * 1e3)
        .number("LIMITED MS", "limited_ms", 3, of_limited)
        .number("SAME ENTRIES MS", "same_ms", 3, of_same)
        .number("RATIO", "ratio_same", 2, ratio(of_same))
        .number("NO FILTER MS", "whole_ms", 3, of_whole)
        .number("RATIO", "ratio_whole", 2, ratio(of_whole)))
}
