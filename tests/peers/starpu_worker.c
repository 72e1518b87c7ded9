/* StarPU behind the protocol of tests/peers: one JSON command per line in, one JSON answer per line
 * out.
 *
 * The graphs of additions are tasks on registered data: dependencies follow from what tasks read
 * and write, as StarPU's users write it. A run does what a user of StarPU does: acquire and write
 * x, submit all tasks, wait for all, read the last sum. Between turns StarPU is paused; otherwise
 * its workers would poll while others have their turn.
 */

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <starpu.h>

#define WIDTH 100 /* nodes of a layer of the layered graph */
#define MAX_NODES 1000000
#define MAX_MS 600000
#define CALIBRATION_RUNS 3

enum shape { CHAIN, INDEPENDENT, LAYERED };

/* Additions that are open; none while nodes is NULL. */
static struct {
    enum shape shape;
    long n_nodes;
    float x;
    float *values;
    starpu_data_handle_t x_handle;
    starpu_data_handle_t *nodes;
} graph;

static void answer_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Strings of ours and words of the command, which hold no quotes. */
static void answer_error(const char *format, ...)
{
    va_list arguments;
    printf("{\"error\": \"");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\"}\n");
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* Where the value of a key of a flat JSON object begins; NULL if it has none. */
static const char *find_value(const char *line, const char *key)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    for (const char *at = line; (at = strstr(at, quoted)) != NULL; at += strlen(quoted)) {
        const char *value = at + strlen(quoted);
        value += strspn(value, " \t");
        if (*value == ':')
            return value + 1 + strspn(value + 1, " \t");
    }
    return NULL;
}

/* The text of a key; 0 if there is none, or if it is longer than the buffer or has escapes. */
static int read_text(const char *line, const char *key, char *text, size_t size)
{
    const char *value = find_value(line, key);
    if (!value || *value != '"')
        return 0;
    size_t length = strcspn(++value, "\"\\\n");
    if (value[length] != '"' || length >= size)
        return 0;
    memcpy(text, value, length);
    text[length] = '\0';
    return 1;
}

/* The whole number of a key; -1 if there is none between 0 and max. */
static long read_number(const char *line, const char *key, long max)
{
    const char *value = find_value(line, key);
    if (!value)
        return -1;
    char *end;
    errno = 0;
    long number = strtol(value, &end, 10);
    if (end == value || errno || number < 0 || number > max || !strchr(",} \t\r\n", *end))
        return -1;
    return number;
}

static void add(void *buffers[], void *unused)
{
    (void)unused;
    float a = *(float *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    float b = *(float *)STARPU_VARIABLE_GET_PTR(buffers[1]);
    *(float *)STARPU_VARIABLE_GET_PTR(buffers[2]) = a + b;
}

/* Both operands are one: StarPU wants no data twice in one task. */
static void add_to_itself(void *buffers[], void *unused)
{
    (void)unused;
    float a = *(float *)STARPU_VARIABLE_GET_PTR(buffers[0]);
    *(float *)STARPU_VARIABLE_GET_PTR(buffers[1]) = a + a;
}

static struct starpu_perfmodel add_model = {.type = STARPU_HISTORY_BASED, .symbol = "placewright_peers_add"};
static struct starpu_perfmodel double_model = {.type = STARPU_HISTORY_BASED, .symbol = "placewright_peers_double"};

static struct starpu_codelet add_codelet = {
    .cpu_funcs = {add},
    .nbuffers = 3,
    .modes = {STARPU_R, STARPU_R, STARPU_W},
    .model = &add_model,
    .name = "add",
};

static struct starpu_codelet double_codelet = {
    .cpu_funcs = {add_to_itself},
    .nbuffers = 2,
    .modes = {STARPU_R, STARPU_W},
    .model = &double_model,
    .name = "double",
};

static int submit(starpu_data_handle_t a, starpu_data_handle_t b, starpu_data_handle_t sum)
{
    struct starpu_task *task = starpu_task_create();
    if (a == b) {
        task->cl = &double_codelet;
        task->handles[0] = a;
        task->handles[1] = sum;
    } else {
        task->cl = &add_codelet;
        task->handles[0] = a;
        task->handles[1] = b;
        task->handles[2] = sum;
    }
    return starpu_task_submit(task);
}

/* Submits the addition of this index: the same edges as those of `placewright bench dispatch`. */
static int submit_node(long index)
{
    starpu_data_handle_t *nodes = graph.nodes, x = graph.x_handle;
    switch (graph.shape) {
    case CHAIN:
        return submit(index ? nodes[index - 1] : x, x, nodes[index]);
    case INDEPENDENT:
        return submit(x, x, nodes[index]);
    case LAYERED:
        break;
    }
    if (index < WIDTH)
        return submit(x, x, nodes[index]);
    long layer = index / WIDTH - 1, place = index % WIDTH;
    starpu_data_handle_t *before = nodes + layer * WIDTH;
    return submit(before[place], before[(place + 1 + layer % 7) % WIDTH], nodes[index]);
}

static float expected_sum(float x)
{
    float sum = x;
    switch (graph.shape) {
    case CHAIN:
        for (long index = 0; index < graph.n_nodes; index++)
            sum += x;
        return sum;
    case INDEPENDENT:
        return x + x;
    case LAYERED:
        break;
    }
    for (long index = 0; index < graph.n_nodes; index += WIDTH)
        sum += sum;
    return sum;
}

/* Runs all additions and checks the sum; the time in ns, or 0 after answering with an error. */
static uint64_t run(long number)
{
    float x = (float)(number % 8), sum;
    int status = 0;
    starpu_data_handle_t last = graph.nodes[graph.n_nodes - 1];
    uint64_t started = now_ns();
    starpu_data_acquire(graph.x_handle, STARPU_W);
    graph.x = x;
    starpu_data_release(graph.x_handle);
    for (long index = 0; index < graph.n_nodes && status == 0; index++)
        status = submit_node(index);
    starpu_task_wait_for_all();
    starpu_data_acquire(last, STARPU_R);
    sum = graph.values[graph.n_nodes - 1];
    starpu_data_release(last);
    uint64_t elapsed = now_ns() - started;
    if (status != 0) {
        answer_error("submitting a task: %s", strerror(-status));
        return 0;
    }
    if (sum != expected_sum(x)) {
        answer_error("fed %g, the sum is %g, expected %g", x, sum, expected_sum(x));
        return 0;
    }
    return elapsed;
}

static void close_graph(void)
{
    if (!graph.nodes)
        return;
    starpu_resume();
    for (long index = 0; index < graph.n_nodes; index++)
        starpu_data_unregister(graph.nodes[index]);
    starpu_data_unregister(graph.x_handle);
    free(graph.nodes);
    free(graph.values);
    graph.nodes = NULL;
    starpu_shutdown();
}

/* Starts StarPU and registers the data; 0 after answering with an error. */
static int start(enum shape shape, long n_nodes, const char *scheduler, long threads, int calibrates)
{
    struct starpu_conf configuration;
    starpu_conf_init(&configuration);
    configuration.sched_policy_name = scheduler;
    configuration.ncpus = (int)threads;
    configuration.ncuda = 0;
    configuration.nopencl = 0;
    configuration.calibrate = calibrates;
    int status = starpu_init(&configuration);
    if (status != 0) {
        answer_error("starting StarPU with scheduler %s: %s", scheduler, strerror(-status));
        return 0;
    }
    if (starpu_cpu_worker_get_count() != (unsigned)threads) {
        answer_error("StarPU has %u CPU workers, not %ld", starpu_cpu_worker_get_count(), threads);
        starpu_shutdown();
        return 0;
    }
    graph.shape = shape;
    graph.n_nodes = n_nodes;
    graph.values = calloc((size_t)n_nodes, sizeof *graph.values);
    graph.nodes = calloc((size_t)n_nodes, sizeof *graph.nodes);
    if (!graph.values || !graph.nodes) {
        free(graph.values);
        free(graph.nodes);
        graph.nodes = NULL;
        starpu_shutdown();
        answer_error("no memory for %ld nodes", n_nodes);
        return 0;
    }
    starpu_variable_data_register(&graph.x_handle, STARPU_MAIN_RAM, (uintptr_t)&graph.x, sizeof graph.x);
    for (long index = 0; index < n_nodes; index++)
        starpu_variable_data_register(&graph.nodes[index], STARPU_MAIN_RAM, (uintptr_t)&graph.values[index],
                                      sizeof graph.values[index]);
    return 1;
}

static void open_graph(const char *line)
{
    char name[32], scheduler[32];
    enum shape shape;
    close_graph();
    if (!read_text(line, "case", name, sizeof name) || !read_text(line, "setting", scheduler, sizeof scheduler)) {
        answer_error("open-dag needs a case and, as setting, a scheduler");
        return;
    }
    if (!strcmp(name, "chain"))
        shape = CHAIN;
    else if (!strcmp(name, "independent"))
        shape = INDEPENDENT;
    else if (!strcmp(name, "layered"))
        shape = LAYERED;
    else {
        answer_error("%s is no case; expected chain, independent or layered", name);
        return;
    }
    long n_nodes = read_number(line, "nodes", MAX_NODES), threads = read_number(line, "threads", STARPU_MAXCPUS);
    if (n_nodes < 2 || threads < 1) {
        answer_error("open-dag needs 2 to %d nodes, and threads", MAX_NODES);
        return;
    }
    /* dmda uses how long tasks take; it learns that first, and stores it when StarPU ends. */
    if (!strcmp(scheduler, "dmda")) {
        if (!start(shape, n_nodes, scheduler, threads, 1))
            return;
        for (long number = 0; number < CALIBRATION_RUNS; number++)
            if (run(number) == 0) {
                close_graph();
                return;
            }
        close_graph();
    }
    uint64_t started = now_ns();
    if (!start(shape, n_nodes, scheduler, threads, 0))
        return;
    uint64_t load = now_ns() - started, first = run(0);
    if (first == 0) {
        close_graph();
        return;
    }
    starpu_pause();
    printf("{\"load_ns\": %" PRIu64 ", \"first_ns\": %" PRIu64 "}\n", load, first);
}

static int by_size(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Repeats the run for a while, three times at least. */
static void turn(long ms)
{
    enum { MAX_RUNS = 1 << 20 };
    static uint64_t times[MAX_RUNS];
    if (!graph.nodes) {
        answer_error("nothing is open; send open-dag first");
        return;
    }
    if (ms < 0) {
        answer_error("turn needs ms, at most %d", MAX_MS);
        return;
    }
    long n_runs = 0;
    starpu_resume();
    uint64_t end = now_ns() + (uint64_t)ms * 1000000u;
    while (n_runs < MAX_RUNS && (n_runs < 3 || now_ns() < end)) {
        uint64_t time = run(n_runs);
        if (time == 0) {
            starpu_pause();
            return;
        }
        times[n_runs++] = time;
    }
    starpu_pause();
    qsort(times, (size_t)n_runs, sizeof *times, by_size);
    /* The smallest time that at least half, and nine tenths, of the times do not exceed. */
    printf("{\"runs\": %ld, \"median_ns\": %" PRIu64 ", \"p90_ns\": %" PRIu64 ", \"min_ns\": %" PRIu64 "}\n", n_runs,
           times[(n_runs + 1) / 2 - 1], times[(n_runs * 9 + 9) / 10 - 1], times[0]);
}

int main(void)
{
    static char line[1 << 16];
    char command[32];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        if (!read_text(line, "do", command, sizeof command))
            answer_error("a line is no command");
        else if (!strcmp(command, "hello"))
            printf("{\"framework\": \"StarPU\", \"version\": \"%d.%d.%d\"}\n", STARPU_MAJOR_VERSION, STARPU_MINOR_VERSION,
                   STARPU_RELEASE_VERSION);
        else if (!strcmp(command, "open-dag"))
            open_graph(line);
        else if (!strcmp(command, "turn"))
            turn(read_number(line, "ms", MAX_MS));
        else if (!strcmp(command, "close")) {
            close_graph();
            printf("{}\n");
        } else
            answer_error("%s is no command of this worker", command);
    }
    close_graph();
    return 0;
}
