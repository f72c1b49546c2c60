//! The macro that makes tests of every behaviour and property.

/// Makes every behaviour and property a `#[test]` of the module that calls it.
///
/// `suite!(make)` runs them on the limiters that `make` opens: a [`Make`](crate::Make), which is a function of the clock
/// that returns an empty limiter.
///
/// `suite!(make, in several places)` is for a store that keeps its keys in several places and cannot decide on all of
/// them in one step. The limits of a joint check are then charged one after the other, and refunded if one refuses, so
/// threads may see a charge that is refunded a moment later.
///
/// One crate can call it for several stores, each in its own module.
#[macro_export]
macro_rules! suite {
    ($make:expr) => {
        $crate::suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            agreement: [every_decision_equals_the_algorithms]
            changing: [every_decision_under_changing_limits_equals_the_algorithms]
            threads: [joint_checks_are_all_or_none_under_threads]
        }
    };
    ($make:expr, in several places) => {
        $crate::suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            agreement: [every_decision_on_one_key_equals_the_algorithms]
            changing: [every_decision_on_one_key_under_changing_limits_equals_the_algorithms]
            threads: [joint_checks_never_admit_too_much_under_threads]
        }
    };
    (@everywhere $make:expr) => {
        $crate::suite! { @behaviours $make,
            promises: [
                request_of_the_remaining_units_is_allowed_and_one_more_is_not,
                request_succeeds_after_retry_after_and_not_a_microsecond_before,
                all_units_are_back_after_reset_after_and_not_a_microsecond_before,
                more_remains_after_more_after_and_not_before,
                more_after_respects_max_wait,
                cost_above_the_limit_never_succeeds,
                denial_costs_nothing,
                peek_charges_nothing_and_predicts_the_check,
                shaping_limit_returns_the_delay,
                max_wait_refuses_a_longer_delay,
                invalid_cost_is_an_error_and_charges_nothing,
                largest_log_admits_exactly_its_limit,
                decisions_with_the_largest_numbers_are_exact,
            ]
            keys: [
                unknown_key_has_the_whole_limit,
                similar_keys_have_separate_states,
                keys_that_differ_in_one_byte_have_separate_states,
                key_above_one_mebibyte_is_an_error_in_every_operation,
                name_above_four_kibibytes_is_an_error,
                ip_address_is_the_key_of_its_client,
                limit_may_be_text_and_invalid_text_is_an_error,
                scopes_with_equal_limits_share_no_state,
                scopes_of_one_name_share_state,
                clones_share_state,
                reset_forgets_its_key_and_no_other,
                reset_of_an_unknown_key_does_nothing,
                log_lists_the_charges_that_count_oldest_first,
                only_logs_list_charges,
            ]
            clocks: [
                key_time_stops_while_the_clock_is_a_little_behind,
                new_clock_keeps_spent_units_and_locks_no_key_out,
                check_is_decided_at_the_time_given_with_it,
                earliest_and_latest_times_are_accepted,
            ]
            refunds: [
                refund_gives_back_the_charge,
                refund_of_a_charge_that_has_left_gives_nothing_back,
                refund_returns_how_much_more_remains,
                receipt_of_another_key_or_scope_is_an_error_and_changes_nothing,
                receipts_of_a_joint_check_belong_to_their_own_keys,
                rebuilt_receipt_refunds_its_key,
                receipt_from_before_a_reset_gives_back_at_most_what_was_spent_since,
                refund_to_an_unknown_key_gives_nothing_back,
                denied_request_has_no_receipt,
                refunded_charge_is_not_listed,
                dropped_check_keeps_its_charge_unless_refunded_if_dropped,
                awaited_check_keeps_its_charge_when_refunded_if_dropped,
            ]
            together: [
                refused_request_charges_no_limit,
                joint_charges_stay_charged,
                joint_check_of_many_new_keys_charges_all,
                refused_by_is_the_limit_with_the_longest_wait,
                requests_remaining_is_that_of_the_tightest_limit,
                same_scope_and_key_twice_is_one_charge_with_the_costs_added,
                shadow_limit_never_refuses_and_is_charged_only_when_it_fits,
                shadow_limits_alone_refuse_nothing,
                peek_in_a_joint_check_refuses_and_is_never_charged,
                peek_is_allowed_beside_a_refused_charge,
                shadow_peek_refuses_nothing_and_is_never_charged,
                peeks_alone_charge_nothing,
                peek_beside_a_charge_of_the_same_key_adds_nothing,
                peeks_of_the_same_key_are_one_peek_with_the_costs_added,
                check_of_no_limits_is_allowed,
                receipts_of_a_joint_check_refund_their_own_charges,
                one_invalid_cost_charges_no_limit,
                scopes_of_different_limiters_are_an_error,
                joint_check_is_decided_at_the_time_given,
            ]
            changed: [
                spent_units_stay_spent_under_any_other_limit,
                key_under_two_limits_in_turn_has_one_state,
                retry_after_is_exact_under_a_faster_rate,
                retry_after_is_exact_between_any_two_limits,
                peek_under_another_limit_changes_nothing,
                refund_under_another_limit_gives_back_what_the_old_one_would,
                receipt_refunds_under_the_same_algorithm_with_another_size,
                reset_forgets_a_key_under_any_limit,
                entries_are_listed_under_the_requested_limit,
                refused_joint_check_carries_over_every_changed_limit,
                same_key_under_two_limits_of_one_name_is_one_charge,
                requests_of_a_batch_may_use_different_limits,
                changed_limit_on_a_new_clock_locks_no_key_out,
            ]
            batches: [
                requests_of_a_batch_are_decided_in_order_and_separately,
                invalid_request_of_a_batch_fails_alone,
                empty_batch_has_no_answers,
            ]
        }
        $crate::suite! { @properties $make,
            promises: [every_decision_keeps_its_promises]
            agreement: [
                every_refund_equals_the_algorithms,
                thousands_of_keys_decide_as_each_would_alone,
            ]
            threads: [
                concurrent_threads_admit_exactly_the_limit,
                answers_to_threads_are_those_of_one_order,
                threads_on_a_few_keys_admit_exactly_the_limit_of_each,
                threads_that_add_a_key_at_once_admit_exactly_one,
                limits_charged_in_opposite_orders_neither_deadlock_nor_over_admit,
                charges_and_refunds_of_many_threads_add_up,
                threads_under_every_limit_of_one_name_admit_exactly_one_limit,
                raised_limit_admits_exactly_the_difference_under_threads,
                limits_of_two_sizes_at_once_admit_exactly_the_larger_under_threads,
            ]
        }
    };
    (@behaviours $make:expr, $($module:ident: [$($name:ident,)*])*) => {
        $($(
            #[test]
            fn $name() {
                $crate::store::block_on($crate::$module::$name($make));
            }
        )*)*
    };
    (@properties $make:expr, $($module:ident: [$($name:ident $(,)?)*])*) => {
        $($(
            #[test]
            fn $name() {
                $crate::$module::$name($make);
            }
        )*)*
    };
}

/// Makes every behaviour and property of holds a `#[test]` of the module that calls it, for a store that has holds.
///
/// Takes the same arguments as [`suite!`](crate::suite).
#[macro_export]
macro_rules! hold_suite {
    ($make:expr) => {
        $crate::hold_suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            threads: [threads_that_reserve_several_limits_admit_exactly_what_one_would]
        }
    };
    ($make:expr, in several places) => {
        $crate::hold_suite! { @everywhere $make }
        $crate::suite! { @properties $make,
            threads: [threads_that_reserve_several_limits_never_admit_too_much]
        }
    };
    (@everywhere $make:expr) => {
        $crate::suite! { @behaviours $make,
            holds: [
                held_units_count_as_spent_and_unused_ones_are_free_at_once,
                released_hold_charges_nothing,
                use_beyond_a_hold_is_charged_up_to_one_whole_limit,
                settlement_in_part_sent_twice_charges_once,
                hold_is_charged_in_full_at_its_expiry,
                dropped_hold_stays_until_it_expires,
                reset_forgets_the_holds_of_its_key,
                holds_keep_their_expiry_on_a_clock_that_steps_back_and_move_with_a_new_one,
                extension_adds_units_that_fit_and_moves_the_expiry,
                key_has_a_bounded_number_of_holds,
                units_that_cannot_be_held_are_an_error,
                open_holds_stay_valid_when_the_limit_changes,
                checks_of_several_limits_beside_holds_are_all_or_none,
            ]
            joint_holds: [
                refused_reservation_of_several_limits_holds_and_charges_nothing,
                reservation_reports_the_tightest_limit_and_each_limits_own_state,
                joint_hold_is_settled_with_the_use_of_each_limit,
                released_joint_hold_charges_nothing,
                each_part_of_a_joint_hold_expires_at_its_own_time,
                joint_extension_extends_all_holds_or_none,
                shadow_part_of_a_reservation_refuses_nothing,
                parts_of_one_key_are_one_hold_for_the_longest_time,
                reservation_without_holds_is_a_check,
                hold_made_again_from_its_reference_is_settled_once,
                operations_on_holds_are_made_at_the_time_given,
                concurrency_limit_is_reserved_beside_other_limits_and_released_when_dropped,
                invalid_part_of_a_reservation_holds_nothing,
                holds_of_one_key_cannot_be_joined,
            ]
            concurrency: [
                concurrency_limit_admits_its_size_at_a_time,
                concurrency_limit_sets_the_hold_time_of_a_reservation_that_gives_none,
                units_of_a_concurrency_limit_are_never_charged,
                refused_reservation_waits_exactly_until_enough_holds_have_expired,
                check_of_a_concurrency_limit_is_an_error_that_says_to_reserve,
                dropped_hold_of_a_concurrency_limit_is_released,
                extension_of_a_concurrency_hold_adds_units_and_moves_the_expiry,
                reset_of_a_concurrency_limit_forgets_its_holds,
                concurrency_holds_keep_their_expiry_on_a_clock_that_steps_back_and_move_with_a_new_one,
                key_moves_between_a_concurrency_limit_and_another,
                concurrency_limit_that_is_lowered_keeps_its_open_holds,
            ]
        }
        $crate::suite! { @properties $make,
            holds: [every_operation_on_holds_is_the_algorithms_own]
            threads: [
                threads_that_reserve_and_settle_admit_exactly_what_one_would,
                threads_hold_no_more_than_a_concurrency_limit_at_a_time,
            ]
        }
    };
}

/// Makes every behaviour and property of leases a `#[test]` of the module that calls it, for a store that has leases.
///
/// Takes the same function as [`suite!`](crate::suite). A request for a lease has one key, so it does not matter whether
/// keys are in several places.
#[macro_export]
macro_rules! lease_suite {
    ($make:expr) => {
        $crate::suite! { @behaviours $make,
            leases: [
                lease_takes_units_and_its_use_is_charged,
                request_for_a_lease_sent_twice_charges_nothing_twice,
                check_that_waits_for_a_lease_is_charged_beside_it,
                expired_lease_is_charged_in_full_and_not_renewed,
                lease_that_was_settled_or_reset_is_unknown,
                lease_of_a_window_ends_with_the_window,
                leases_of_a_key_share_half_of_what_remains,
                use_beyond_a_lease_is_charged_as_excess,
                key_with_the_most_holds_gets_no_lease,
                open_leases_stay_valid_when_the_limit_changes,
                key_under_an_old_limit_without_leases_gets_none,
            ]
        }
        $crate::suite! { @properties $make,
            leases: [every_request_for_a_lease_is_the_algorithms_own]
        }
    };
}
