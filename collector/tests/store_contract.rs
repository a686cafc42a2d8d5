//! What every store must do: one suite, run over each store.
#![allow(clippy::unwrap_used, reason = "a check that cannot go on has failed")]

mod contract;

use std::sync::Arc;

use blkin_collector::store::disk::Disk;
use blkin_collector::store::memory::Memory;
use blkin_collector::store::{Store, TraceStore};

fn keys() -> Vec<String> {
    vec!["environment".to_owned()]
}

fn in_memory(check: fn(&dyn Store)) {
    check(&TraceStore::new(Memory::default(), keys()).unwrap());
}

/// The check runs on a fresh file; what it left behind must then read back the same from a reopened one.
fn on_disk(check: fn(&dyn Store)) {
    let folder = tempfile::tempdir().unwrap();
    let open = || TraceStore::new(Disk::open(folder.path(), 1 << 20).unwrap(), keys()).unwrap();
    let store = open();
    check(&store);
    let before = (store.ledger().unwrap(), store.count().unwrap());
    drop(store);
    let store: Arc<dyn Store> = Arc::new(open());
    assert_eq!((store.ledger().unwrap(), store.count().unwrap()), before);
}

macro_rules! contract {
    ($($module:ident: $($rule:ident)*;)*) => {
        mod memory {
            $($(#[test] fn $rule() { super::in_memory(super::contract::$module::$rule); })*)*
        }
        mod disk {
            $($(#[test] fn $rule() { super::on_disk(super::contract::$module::$rule); })*)*
        }
    };
}

contract! {
    reading:
        an_id_is_matched_exactly_and_an_unknown_one_gives_nothing
        identical_spans_sent_again_are_returned_once
        debug_and_shared_spans_stay_distinct_and_unmerged
        traces_that_share_low_bits_stay_apart_if_strict_and_are_one_if_not
        long_values_read_back_untruncated
        an_empty_store_answers_everything
        a_span_that_holds_only_ids_is_stored
        pieces_of_a_v1_span_that_arrive_apart_become_one_span
        several_traces_are_read_at_once_and_misses_left_out
        what_has_no_room_in_an_answer_stays_in_the_store;
    searching:
        the_time_of_a_trace_is_that_of_its_first_span_without_parent
        a_trace_without_any_time_is_never_found
        a_root_that_comes_late_moves_the_trace_in_time
        both_ends_of_the_window_are_inside
        a_found_trace_is_returned_whole
        the_limit_counts_traces_and_the_latest_come_first
        every_condition_is_met_by_a_span_of_the_service
        names_are_lower_cased
        durations_include_both_ends
        an_empty_tag_value_can_be_searched
        annotations_and_tag_keys_are_found_by_text;
    listing:
        services_are_local_names_only_and_all_of_them
        span_names_and_remote_services_belong_to_a_service
        only_configured_tags_are_offered
        two_hundred_and_fifty_six_traces_give_all_their_links
        links_are_not_doubled_by_a_replay_or_by_long_ids;
    counting:
        every_annotation_is_kept_repeated_keys_and_equal_moments_too
        an_annotation_sent_again_is_a_duplicate_however_it_is_grouped
        an_identity_counts_within_its_trace_and_source
        the_same_identity_twice_in_one_piece_is_stored_once
        foreign_pieces_sent_again_are_duplicates
        what_was_counted_on_the_way_is_committed_with_the_batch
        old_traces_expire_and_are_counted
        the_oldest_traces_leave_when_there_is_too_much
        a_trace_that_gets_news_is_kept;
}
