//! Runs the models.

#[test]
fn every_number_is_taken_once() {
    placewright_loom::every_number_is_taken_once();
}

#[test]
fn a_word_that_is_emptied_and_filled_at_one_time_is_not_lost() {
    placewright_loom::a_word_that_is_emptied_and_filled_at_one_time_is_not_lost();
}

#[test]
fn who_counts_the_last_has_it_alone() {
    placewright_loom::who_counts_the_last_has_it_alone();
}

#[test]
fn what_is_lent_comes_back() {
    placewright_loom::what_is_lent_comes_back();
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
fn what_waits_for_two_that_end_later_is_executed_once() {
    placewright_loom::what_waits_for_two_that_end_later_is_executed_once();
}

#[test]
fn a_caller_with_a_deadline_sees_an_interrupt() {
    placewright_loom::a_caller_with_a_deadline_sees_an_interrupt();
}
