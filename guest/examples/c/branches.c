// Branches of a graph run on the least loaded devices: guest/examples/branches in C.
//
// A node runs where its inputs are. A node that starts a branch runs on the least loaded device.
//
// `wit-bindgen c` generates offline_policy.h. Strings and lists that a policy returns are freed by
// the bindings, so they are allocated with malloc, as `offline_policy_string_dup` does.

#include <stdlib.h>
#include <string.h>

#include "offline_policy.h"

#define NONE UINT32_MAX
#define PRELOADED 16  // a bit of edge-kinds: the edge of a constant or a feed

typedef exports_placewright_policy_lifecycle_info_t info_t;
typedef exports_placewright_policy_lifecycle_list_setting_t list_setting_t;
typedef exports_placewright_policy_lifecycle_config_error_t config_error_t;
typedef exports_placewright_policy_whole_graph_place_error_t place_error_t;

static const char DESCRIPTION[] = "branches of a graph run on the least loaded devices";
static const char SPREAD_ABOVE_NS[] = "spread-above-ns";
static const char SPREAD_DESCRIPTION[] =
    "a branch that starts with a faster node stays on the preferred device";
static double spread_above_ns;

void exports_placewright_policy_lifecycle_describe(info_t *info) {
  offline_policy_string_dup(&info->name, "branches-c");
  offline_policy_string_dup(&info->version, "0.1.0");
  offline_policy_string_dup(&info->description, DESCRIPTION);
}

void exports_placewright_policy_lifecycle_settings(list_setting_t *settings) {
  settings->len = 1;
  settings->ptr = malloc(sizeof *settings->ptr);
  if (settings->ptr == NULL) abort();
  offline_policy_string_dup(&settings->ptr->key, SPREAD_ABOVE_NS);
  offline_policy_string_dup(&settings->ptr->kind, "f64");
  offline_policy_string_dup(&settings->ptr->default_, "0");
  offline_policy_string_dup(&settings->ptr->description, SPREAD_DESCRIPTION);
}

static bool is_equal(const offline_policy_string_t *string, const char *expected) {
  size_t len = strlen(expected);
  return string->len == len && memcmp(string->ptr, expected, len) == 0;
}

// Strings of the contract have no NUL at their end.
static bool parse_f64(const offline_policy_string_t *string, double *value) {
  char text[64], *end;
  if (string->len == 0 || string->len >= sizeof text) return false;
  memcpy(text, string->ptr, string->len);
  text[string->len] = '\0';
  *value = strtod(text, &end);
  return end == text + string->len && *value == *value;
}

bool exports_placewright_policy_lifecycle_configure(
    exports_placewright_policy_lifecycle_list_property_t *config, config_error_t *error) {
  bool is_ok = true;
  spread_above_ns = 0.0;
  for (size_t i = 0; i < config->len && is_ok; i++) {
    const offline_policy_string_t *key = &config->ptr[i].key, *value = &config->ptr[i].value;
    if (!is_equal(key, SPREAD_ABOVE_NS)) {
      error->tag = EXPORTS_PLACEWRIGHT_POLICY_LIFECYCLE_CONFIG_ERROR_UNKNOWN_KEY;
      offline_policy_string_dup_n(&error->val.unknown_key, (const char *)key->ptr, key->len);
      is_ok = false;
    } else if (!parse_f64(value, &spread_above_ns)) {
      error->tag = EXPORTS_PLACEWRIGHT_POLICY_LIFECYCLE_CONFIG_ERROR_BAD_VALUE;
      offline_policy_string_dup(&error->val.bad_value.key, SPREAD_ABOVE_NS);
      offline_policy_string_dup(&error->val.bad_value.value, "not a number (expected f64)");
      is_ok = false;
    }
  }
  exports_placewright_policy_lifecycle_list_property_free(config);
  return is_ok;
}

static bool fails(place_error_t *error, const char *reason) {
  error->tag = EXPORTS_PLACEWRIGHT_POLICY_WHOLE_GRAPH_PLACE_ERROR_FAILED;
  offline_policy_string_dup(&error->val.failed, reason);
  return false;
}

// The columns that the policy reads, and its answer. Each getter copies a column: call it once.
typedef struct {
  placewright_policy_graphs_counts_t counts;
  placewright_policy_graphs_csr_t candidates, inputs;
  offline_policy_list_u32_t candidate_set, group, pinned, cost_row, class_of;
  offline_policy_list_u8_t kinds;
  offline_policy_list_f64_t costs;
  uint32_t *device_of_group, *device_of_node, *nodes;
  uint8_t *reason_of_node;
  double *load_ns;
} work_t;

enum { STARTS, FOLLOWS, GROUPED, N_REASONS };
static const char *const REASONS[N_REASONS] = {
    "starts a branch", "runs where an input is", "its colocation group is there"};

static bool open_work(work_t *work, placewright_policy_graphs_borrow_graph_t graph,
                      placewright_policy_devices_borrow_device_set_t devices) {
  placewright_policy_graphs_method_graph_counts(graph, &work->counts);
  placewright_policy_graphs_method_graph_candidates(graph, &work->candidates);
  placewright_policy_graphs_method_graph_predecessors(graph, &work->inputs);
  placewright_policy_graphs_method_graph_candidate_set(graph, &work->candidate_set);
  placewright_policy_graphs_method_graph_group(graph, &work->group);
  placewright_policy_graphs_method_graph_pinned(graph, &work->pinned);
  placewright_policy_graphs_method_graph_cost_row(graph, &work->cost_row);
  placewright_policy_graphs_method_graph_edge_kinds(graph, &work->kinds);
  placewright_policy_graphs_method_graph_costs(graph, &work->costs);
  placewright_policy_devices_method_device_set_cost_classes(devices, &work->class_of);
  size_t n_nodes = work->counts.nodes + 1;  // calloc(0) may return NULL
  work->device_of_group = calloc(work->counts.groups + 1, sizeof(uint32_t));
  work->device_of_node = calloc(n_nodes, sizeof(uint32_t));
  work->nodes = calloc(n_nodes, sizeof(uint32_t));
  work->reason_of_node = calloc(n_nodes, 1);
  work->load_ns = calloc(work->class_of.len + 1, sizeof(double));
  return work->device_of_group && work->device_of_node && work->nodes && work->reason_of_node &&
         work->load_ns;
}

static void close_work(work_t *work) {
  placewright_policy_graphs_csr_free(&work->candidates);
  placewright_policy_graphs_csr_free(&work->inputs);
  offline_policy_list_u32_free(&work->candidate_set);
  offline_policy_list_u32_free(&work->group);
  offline_policy_list_u32_free(&work->pinned);
  offline_policy_list_u32_free(&work->cost_row);
  offline_policy_list_u32_free(&work->class_of);
  offline_policy_list_u8_free(&work->kinds);
  offline_policy_list_f64_free(&work->costs);
  free(work->device_of_group);
  free(work->device_of_node);
  free(work->nodes);
  free(work->reason_of_node);
  free(work->load_ns);
}

static double cost_ns(const work_t *work, uint32_t node, uint32_t device) {
  size_t row = work->cost_row.ptr[node];
  return work->costs.ptr[row * work->counts.cost_classes + work->class_of.ptr[device]];
}

// Returns the device that the node should have, if its group is not decided yet.
static uint32_t choose(const work_t *work, uint32_t node, uint8_t *reason) {
  const uint32_t *sets = work->candidates.offsets.ptr + work->candidate_set.ptr[node];
  const uint32_t *legal = work->candidates.items.ptr + sets[0];
  size_t n_legal = sets[1] - sets[0];  // at least one

  *reason = FOLLOWS;
  const uint32_t *edges = work->inputs.offsets.ptr + node;
  for (uint32_t edge = edges[0]; edge < edges[1]; edge++) {
    if (work->kinds.ptr[edge] & PRELOADED) continue;
    uint32_t device = work->device_of_node[work->inputs.items.ptr[edge]];
    for (size_t i = 0; i < n_legal; i++) {
      if (legal[i] == device) return device;
    }
  }

  *reason = STARTS;
  uint32_t best = legal[0];
  if (cost_ns(work, node, best) >= spread_above_ns) {
    for (size_t i = 1; i < n_legal; i++) {
      if (work->load_ns[legal[i]] < work->load_ns[best]) best = legal[i];
    }
  }
  return best;
}

// The first member decided, or a pinned one, decides for its colocation group.
static void decide_all(work_t *work) {
  for (uint32_t group = 0; group < work->counts.groups; group++) {
    work->device_of_group[group] = NONE;
  }
  for (uint32_t node = 0; node < work->counts.nodes; node++) {
    if (work->pinned.ptr[node] != NONE) {
      work->device_of_group[work->group.ptr[node]] = work->pinned.ptr[node];
    }
  }
  for (uint32_t node = 0; node < work->counts.nodes; node++) {
    uint32_t wanted = choose(work, node, &work->reason_of_node[node]);
    uint32_t *of_group = &work->device_of_group[work->group.ptr[node]];
    if (*of_group == NONE) *of_group = wanted;
    if (*of_group != wanted) work->reason_of_node[node] = GROUPED;
    work->device_of_node[node] = *of_group;
    work->load_ns[*of_group] += cost_ns(work, node, *of_group);
  }
}

static void explain_all(const work_t *work, placewright_policy_planning_borrow_plan_t plan) {
  for (uint8_t reason = 0; reason < N_REASONS; reason++) {
    offline_policy_list_u32_t nodes = {work->nodes, 0};
    for (uint32_t node = 0; node < work->counts.nodes; node++) {
      if (work->reason_of_node[node] == reason) nodes.ptr[nodes.len++] = node;
    }
    offline_policy_string_t text;
    offline_policy_string_set(&text, REASONS[reason]);  // references the string, copies nothing
    placewright_policy_planning_method_plan_explain(plan, &nodes, &text);
  }
}

bool exports_placewright_policy_whole_graph_place(
    exports_placewright_policy_whole_graph_borrow_graph_t graph,
    exports_placewright_policy_whole_graph_borrow_device_set_t devices,
    exports_placewright_policy_whole_graph_borrow_plan_t plan, uint64_t seed,
    place_error_t *error) {
  (void)seed;
  work_t work = {0};
  bool is_ok = open_work(&work, graph, devices) || fails(error, "not enough memory");
  if (is_ok) {
    decide_all(&work);
    offline_policy_list_u32_t answer = {work.device_of_node, work.counts.nodes};
    placewright_policy_planning_method_plan_set_devices(plan, &answer);
    placewright_policy_planning_violation_t violation;
    if (!placewright_policy_planning_method_plan_offer(plan, &violation)) {
      error->tag = EXPORTS_PLACEWRIGHT_POLICY_WHOLE_GRAPH_PLACE_ERROR_FAILED;
      offline_policy_string_dup_n(&error->val.failed, (const char *)violation.explanation.ptr,
                                  violation.explanation.len);
      placewright_policy_planning_violation_free(&violation);
      is_ok = false;
    } else if (placewright_policy_planning_method_plan_explain_wanted(plan)) {
      explain_all(&work, plan);
    }
  }
  close_work(&work);
  return is_ok;
}
