//! Runs the models.

#[test]
fn every_number_is_taken_once() {
    placewright_loom::every_number_is_taken_once();
}

#[test]
fn an_integer_emptied_and_filled_concurrently_is_not_lost() {
    placewright_loom::an_integer_emptied_and_filled_concurrently_is_not_lost();
}

#[test]
fn the_last_to_count_has_exclusive_access() {
    placewright_loom::the_last_to_count_has_exclusive_access();
}

#[test]
fn a_lent_value_is_returned() {
    placewright_loom::a_lent_value_is_returned();
}

#[test]
fn a_run_ends_and_the_caller_sees_it() {
    placewright_loom::a_run_ends_and_the_caller_sees_it();
}

#[test]
fn independent_operations_are_shared() {
    placewright_loom::independent_operations_are_shared();
}

#[test]
fn a_run_that_fails_ends() {
    placewright_loom::a_run_that_fails_ends();
}

#[test]
fn a_caller_with_a_deadline_sees_what_ends_later() {
    placewright_loom::a_caller_with_a_deadline_sees_what_ends_later();
}

#[test]
fn a_successor_of_two_asynchronous_operations_is_executed_once() {
    placewright_loom::a_successor_of_two_asynchronous_operations_is_executed_once();
}

#[test]
fn a_caller_with_a_deadline_sees_an_interrupt() {
    placewright_loom::a_caller_with_a_deadline_sees_an_interrupt();
}
