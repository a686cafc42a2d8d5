//! The configuration keys that bound queries, and the intervals between annotations.

use std::io::Read;

use flate2::read::GzDecoder;

use crate::bad_input::JSON;
use crate::intake::head;
use crate::limits::configured;
use crate::running::Collector;

/// A journal that wrote twice, for 100 and 300 µs, in a trace of this id.
fn post_journal(collector: &Collector, trace: &str, daemon: &str, time_us: u64) {
    let event = |after: u64, value: &str| format!(r#"{{"timestamp":{},"value":"{value}"}}"#, time_us + after);
    let events = [event(0, "begins"), event(100, "ends"), event(500, "begins"), event(800, "ends")].join(",");
    let body = format!(
        r#"[{{"traceId":"{trace}","id":"1","name":"journal","timestamp":{time_us},"duration":800,
            "localEndpoint":{{"serviceName":"{daemon}"}},"annotations":[{events}],"tags":{{"pool":"ssd"}}}}]"#
    );
    assert_eq!(collector.post("/api/v2/spans", &[JSON], body.as_bytes()).0, 202);
}

#[test]
fn intervals_are_measured_by_service_within_a_window() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    for (trace, daemon, time_s) in
        [("1", "osd.0", 1000), ("2", "osd.0", 1001), ("3", "osd.1", 1002), ("4", "osd.0", 9)]
    {
        post_journal(&collector, trace, daemon, time_s * 1_000_000);
    }
    let ask = |more: &str| {
        collector
            .json(&format!("/api/blkin/intervals?from=begins&to=ends&endTs=1100000&lookback=200000{more}"))
    };
    let all = ask("");
    assert_eq!((&all["traces"], &all["complete"]), (&3.into(), &true.into()));
    let osd0 = &all["services"][0];
    assert_eq!((&osd0["service"], &osd0["count"]), (&"osd.0".into(), &4.into()), "{all}");
    assert_eq!((&osd0["average_us"], &osd0["max_us"]), (&200.0.into(), &300.into()), "{all}");
    assert_eq!((&osd0["p50_us"], &osd0["p99_us"]), (&100.into(), &300.into()), "{all}");
    assert_eq!(all["services"].as_array().unwrap().len(), 2);
    assert_eq!(all["without_end"], 0);
    let osd1 = ask("&serviceName=OSD.1");
    assert_eq!((&osd1["traces"], &osd1["services"][0]["count"]), (&1.into(), &2.into()), "{osd1}");
    assert_eq!(ask("&spanName=other")["services"].as_array().unwrap().len(), 0);
    for path in ["/api/blkin/intervals?from=begins", "/api/blkin/intervals?from=a&to=b&lookback=x"] {
        assert_eq!(collector.get(path).0, 400, "{path}");
    }
}

/// A call within a microsecond has no duration in v2: there only its sender knows whether it ended.
#[test]
fn intervals_count_instant_calls_and_report_missing_ends() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mark = |value: &str, us: u64| {
        format!(r#"{{"timestamp":{us},"value":"{value}","endpoint":{{"serviceName":"osd.0"}}}}"#)
    };
    let call = |id: u32, marks: &[String]| {
        format!(r#"{{"traceId":"1","id":"{id}","name":"read","annotations":[{}]}}"#, marks.join(","))
    };
    let (begin, end) = (1_000_000_000, 1_000_000_010);
    let calls = [
        call(1, &[mark("sr", begin), mark("ss", begin)]),
        call(2, &[mark("sr", begin), mark("ss", end)]),
        call(3, &[mark("sr", begin)]),
    ];
    let v1 = format!("[{}]", calls.join(","));
    let v2 = format!(
        r#"[{{"traceId":"1","id":"4","kind":"SERVER","timestamp":{begin},"localEndpoint":{{"serviceName":"osd.1"}}}}]"#
    );
    for (path, body) in [("/api/v1/spans", v1), ("/api/v2/spans", v2)] {
        assert_eq!(collector.post(path, &[JSON], body.as_bytes()).0, 202, "{path}");
    }
    let all = collector.json("/api/blkin/intervals?from=sr&to=ss&endTs=1100000&lookback=200000");
    let [osd0] = all["services"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!((&osd0["count"], &osd0["average_us"]), (&2.into(), &5.0.into()), "{all}");
    assert_eq!(all["without_end"], 2, "{all}");
}

/// A producer and a consumer that share a span, as in v1, and two that do not, as in v2.
#[test]
fn message_intervals_belong_to_the_receiving_service() {
    let folder = tempfile::tempdir().unwrap();
    let collector = Collector::start(folder.path());
    let mark = |value: &str, us: u64, service: &str| {
        format!(r#"{{"timestamp":{us},"value":"{value}","endpoint":{{"serviceName":"{service}"}}}}"#)
    };
    let begin = 1_000_000_000;
    let marks = [mark("ms", begin, "gateway"), mark("mr", begin + 40, "osd.0")].join(",");
    let v1 = format!(r#"[{{"traceId":"1","id":"1","name":"write","annotations":[{marks}]}}]"#);
    let side = |ids: &str, kind: &str, us: u64, service: &str| {
        format!(
            r#"{{"traceId":"2",{ids},"kind":"{kind}","timestamp":{us},"localEndpoint":{{"serviceName":"{service}"}}}}"#
        )
    };
    let sent = side(r#""id":"1""#, "PRODUCER", begin, "gateway");
    let received = side(r#""id":"2","parentId":"1""#, "CONSUMER", begin + 60, "osd.0");
    for (path, body) in [("/api/v1/spans", v1), ("/api/v2/spans", format!("[{sent},{received}]"))] {
        assert_eq!(collector.post(path, &[JSON], body.as_bytes()).0, 202, "{path}");
    }
    let all = collector.json("/api/blkin/intervals?from=ms&to=mr&endTs=1100000&lookback=200000");
    let [osd0] = all["services"].as_array().unwrap().as_slice() else { panic!("{all}") };
    assert_eq!((&osd0["service"], &osd0["count"]), (&"osd.0".into(), &2.into()), "{all}");
    assert_eq!((&osd0["average_us"], &osd0["max_us"]), (&50.0.into(), &60.into()), "{all}");
    assert_eq!(all["without_end"], 0, "{all}");
}

#[test]
fn a_header_tells_when_query_max_traces_reduced_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "query_max_traces = 2\n");
    let ask = |limit: u32| {
        let path = format!("/api/v2/traces?endTs=2000&lookback=2000&limit={limit}");
        (collector.json(&path).as_array().unwrap().len(), collector.header(&path, "blkin-limit"))
    };
    post_journal(&collector, "1", "osd.0", 1_000_000);
    assert_eq!(ask(3), (1, None));
    for trace in ["2", "3"] {
        post_journal(&collector, trace, "osd.0", 1_000_000);
    }
    assert_eq!((ask(1), ask(2)), ((1, None), (2, None)));
    assert_eq!(ask(3), (2, Some("2".to_owned())));
}

#[test]
fn large_answers_are_compressed_for_clients_that_accept_gzip() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("index.html");
    std::fs::write(&page, "again and ".repeat(1000)).unwrap();
    let collector = configured(folder.path(), &format!("ui_dir = {:?}\n", folder.path()));
    let span = |id| format!(r#"{{"traceId":"1","id":"{id}","tags":{{"repeats":"itself"}}}}"#);
    let spans: Vec<String> = (1..100).map(span).collect();
    assert_eq!(collector.post("/api/v2/spans", &[JSON], format!("[{}]", spans.join(",")).as_bytes()).0, 202);
    for path in ["/api/v2/trace/1", "/zipkin/"] {
        let plain = collector.get(path).1.into_bytes();
        let (coding, bytes) = collector.coded(path, "deflate, gzip");
        assert!(coding.as_deref() == Some("gzip") && bytes.len() * 5 < plain.len(), "{path} {coding:?}");
        let mut read = Vec::new();
        GzDecoder::new(&bytes[..]).read_to_end(&mut read).unwrap();
        assert_eq!(read, plain);
        for accepted in ["*", "identity;q=0, gzip;q=0.001", "*;q=0, gzip"] {
            assert_eq!(collector.coded(path, accepted).0, coding, "{path} {accepted}");
        }
        for accepted in [
            "gzip;q=0",
            "br",
            "identity",
            "identity;q=1, *;q=0",
            "identity;q=0",
            "*;q=0",
            "identity;q=0, *;q=0",
            "br, identity;q=0",
        ] {
            assert_eq!(collector.coded(path, accepted), (None, plain.clone()), "{path} {accepted}");
        }
        assert!(collector.header(path, "vary").is_some_and(|vary| vary.contains("accept-encoding")));
    }
    assert_eq!(collector.coded("/api/v2/services", "gzip"), (None, b"[]".to_vec()));
}

/// RFC 9110, 8.8.3.3: a strong tag would have to differ between codings. And 15.4.5: a cache must know that there are several.
#[test]
fn page_files_have_the_same_weak_etag_and_vary_in_any_coding() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["index.html", "script.js"] {
        std::fs::write(folder.path().join(file), "again and ".repeat(1000)).unwrap();
    }
    let collector = configured(folder.path(), &format!("ui_dir = {:?}\n", folder.path()));
    let asked = |path: &str, more: &str| head(&collector, &format!("GET {path} HTTP/1.1\r\n{more}"));
    let tag_of = |answer: &str| {
        assert!(answer.contains("\r\nvary: accept-encoding"), "{answer}");
        let tag = answer.lines().find_map(|line| line.strip_prefix("etag: w/")).map(str::to_owned);
        tag.unwrap_or_else(|| panic!("a weak tag: {answer}"))
    };
    for path in ["/zipkin/", "/zipkin/script.js"] {
        let (plain, packed) = (asked(path, "A: b"), asked(path, "Accept-Encoding: gzip"));
        assert!(packed.contains("\r\ncontent-encoding: gzip") && !plain.contains("content-encoding"));
        let tag = tag_of(&plain);
        assert_eq!(tag_of(&packed), tag);
        for known in [format!("W/{tag}"), tag.clone()] {
            let answer = asked(path, &format!("Accept-Encoding: gzip\r\nIf-None-Match: {known}"));
            assert!(answer.starts_with("http/1.1 304"), "{answer}");
            assert_eq!(tag_of(&answer), tag);
        }
    }
}

#[test]
fn an_invalid_range_of_a_page_file_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["index.html", "script.js"] {
        std::fs::write(folder.path().join(file), "0123456789").unwrap();
    }
    let collector = configured(folder.path(), &format!("ui_dir = {:?}\n", folder.path()));
    let whole = [
        "lines=1-2",
        "bytes=0-1,3-4",
        "bytes=x",
        "bytes=2-1",
        "bytes=0-1\r\nRange: bytes=3-4",
        "bytes=0-1\r\nIf-Range: \"of an older file\"",
    ];
    let ranges = whole.map(|range| (range, "200")).into_iter().chain([
        ("bytes=0-1", "206"),
        ("bytes=8-", "206"),
        ("bytes=-2", "206"),
        ("bytes=10-", "416"),
    ]);
    for (range, status) in ranges {
        for path in ["/zipkin/", "/zipkin/script.js"] {
            let answer = head(&collector, &format!("GET {path} HTTP/1.1\r\nRange: {range}"));
            assert!(answer.starts_with(&format!("http/1.1 {status}")), "{path} {range}: {answer}");
        }
    }
}

/// As Zipkin answers it, member by member.
#[test]
fn config_json_matches_zipkins_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "autocomplete_keys = [\"pool\"]\n");
    let of_zipkin = serde_json::json!({
        "environment": "",
        "queryLimit": 10,
        "defaultLookback": 900_000,
        "searchEnabled": true,
        "logsUrl": null,
        "supportUrl": null,
        "archivePostUrl": null,
        "archiveUrl": null,
        "dependency": {"enabled": true, "lowErrorRate": 0.5, "highErrorRate": 0.75},
    });
    for path in ["/config.json", "/zipkin/config.json"] {
        assert_eq!(collector.json(path), of_zipkin, "{path}");
        assert_eq!(collector.header(path, "cache-control").as_deref(), Some("max-age=600"), "{path}");
    }
}

/// A trace in which this service calls another one, with a tag of its own.
fn post_service(collector: &Collector, number: u32) {
    let body = format!(
        r#"[{{"traceId":"{number}","id":"1","kind":"CLIENT","name":"call","tags":{{"pool":"{number}"}},
            "localEndpoint":{{"serviceName":"osd.{number}"}},"remoteEndpoint":{{"serviceName":"disk"}}}}]"#
    );
    assert_eq!(collector.post("/api/v2/spans", &[JSON], body.as_bytes()).0, 202);
}

#[test]
fn name_lists_are_cacheable_once_there_are_many_services() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "autocomplete_keys = [\"pool\"]\n");
    let kept = |path: &str| collector.header(path, "cache-control");
    let of_services = [
        "/api/v2/services",
        "/zipkin/api/v2/services",
        "/api/v2/spans?serviceName=osd.1",
        "/api/v2/remoteServices?serviceName=osd.1",
        "/api/v2/spans?serviceName=nobody",
    ];
    let values = "/api/v2/autocompleteValues?key=pool";
    let long = Some("max-age=300, must-revalidate".to_owned());
    (1..=3).for_each(|number| post_service(&collector, number));
    for path in of_services.into_iter().chain([values]) {
        assert_eq!(kept(path), None, "{path}, of three");
    }
    post_service(&collector, 4);
    for path in of_services.into_iter().chain([values]) {
        assert_eq!(kept(path), long, "{path}, of four");
    }
    assert_eq!(kept("/api/v2/autocompleteKeys"), long);
    for path in ["/api/v2/autocompleteValues?key=other", "/api/v2/spans", "/api/v2/traces"] {
        assert_eq!(kept(path), None, "{path}");
    }
}

#[test]
fn with_search_disabled_traces_are_read_only_by_id() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "search_enabled = false\nautocomplete_keys = [\"pool\"]\n");
    post_journal(&collector, "1", "osd.0", 1_000_000);
    for path in [
        "/api/v2/services",
        "/api/v2/spans?serviceName=osd.0",
        "/api/v2/remoteServices?serviceName=osd.0",
        "/api/v2/traces?endTs=2000&lookback=2000",
        "/api/v2/autocompleteValues?key=pool",
        "/api/v2/dependencies?endTs=2000",
    ] {
        assert_eq!(collector.get(path), (200, "[]".to_owned()), "{path}");
    }
    assert_eq!(collector.get("/api/v2/autocompleteKeys").1, r#"["pool"]"#);
    assert_eq!(collector.json("/config.json")["searchEnabled"], false);
    assert!(collector.has_trace(1));
}

#[test]
fn traces_of_64_and_128_bits_are_one_if_ids_are_not_strict() {
    let folder = tempfile::tempdir().unwrap();
    let collector = configured(folder.path(), "strict_trace_id = false\nautocomplete_keys = [\"pool\"]\n");
    post_journal(&collector, "0000000000000007", "osd.0", 1_000_000);
    post_journal(&collector, "00000000000000010000000000000007", "osd.1", 1_000_500);
    let spans = |path: &str| collector.json(path).as_array().unwrap().len();
    assert_eq!(spans("/api/v2/trace/0000000000000007"), 2);
    assert_eq!(spans("/api/v2/trace/00000000000000090000000000000007"), 2);
    assert_eq!(spans("/api/v2/traces?endTs=2000&lookback=2000"), 1);
    let both = collector.json("/api/v2/traceMany?traceIds=7,10000000000000007");
    assert_eq!((both.as_array().unwrap().len(), both[0].as_array().unwrap().len()), (1, 2), "{both}");
    assert_eq!(collector.get("/api/v2/traceMany?traceIds=7,0000000000000007").0, 400);
    assert_eq!(collector.get("/api/v2/autocompleteValues?key=pool").1, r#"["ssd"]"#);
    assert_eq!(collector.get("/api/v2/autocompleteValues?key=other").1, "[]");
}
