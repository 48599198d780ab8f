// SPDX-License-Identifier: Apache-2.0
// Makes an exactly known number of events.
//
// Every mode prints one JSON line when it is ready, waits for a line on standard input, works, and
// prints one JSON line with what it did. --now starts without waiting; --hold waits for one more
// line (or the end of standard input) before it exits, so that its counters can still be read.
//
//   count   --count N [--threads T] [--later L] [--rate R] [--cpu C] [--nr S] [--slices K]
//           [--endless 1]
//           T threads that exist when it is ready, and L that it creates after the start, make N
//           system calls of number S each. The default number belongs to no system call (the
//           kernel answers ENOSYS), so a filter "id == S" sees these calls and no others. A call's
//           first argument is the number of calls that its thread has made before. The CPU time of
//           each of K parts of a lone thread's calls is told apart, where they have no rate. With
//           --endless they make calls until one more line comes, at full speed or at a rate.
//   exec    --count N [--library PATH] [--each E] [--hop H]
//           N children, one after the other: each execs, maps PATH executable, makes E calls, exits.
//           Before each H-th call it goes on to the next CPU.
//   faults  --pages N          N page faults in one fresh anonymous mapping
//   mem     --count N          N 8-byte stores to the address told in the ready line
//   spin    --seconds S        burns CPU in spin_outer -> spin_inner
//   idle    --processes P [--maps M]   P sleeping children with M executable mappings each
//   hold-thread --tid T        stops one thread of another process until the end
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_THREADS = 256,
    MAX_SLICES = 256,
    MARK = 3999,
    NS_PER_S = 1000000000,
    SLICE_NS = 1000000
};

static struct {
    uint64_t count, pages, each, hop;
    unsigned threads, later, processes, maps, slices;
    double rate, seconds;
    long nr;
    int cpu;
    pid_t tid;
    bool now, hold, endless;
    const char *library;
} opt = {.count = 1000,
         .pages = 1000,
         .each = 1,
         .threads = 1,
         .processes = 600,
         .maps = 11,
         .slices = 1,
         .seconds = 1,
         .nr = MARK,
         .cpu = -1,
         .library = "/proc/self/exe"};

struct worker {
    pthread_t thread;
    pid_t tid;
    uint64_t made;
};
static struct worker workers[MAX_THREADS];
static pthread_barrier_t ready, start;
static double slice_cpu[MAX_SLICES];
static atomic_bool over; // the calls of --endless
volatile uint64_t mem_target;

static bool is_over(void)
{
    return atomic_load_explicit(&over, memory_order_relaxed);
}

static void die(const char *what)
{
    fprintf(stderr, "generator: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / NS_PER_S;
}

static void wait_line(void)
{
    char c;
    ssize_t got;
    do {
        got = read(STDIN_FILENO, &c, 1);
        if (got < 0 && errno == EINTR)
            continue;
    } while (got > 0 && c != '\n');
}

static void pin(void)
{
    if (opt.cpu < 0)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)opt.cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("cannot pin");
}

// The calls of one thread: at full speed, or in millisecond slices that keep to the rate.
static void make_calls(struct worker *w)
{
    if (opt.endless && opt.rate <= 0) {
        for (; !is_over(); w->made++)
            syscall(opt.nr, w->made);
        return;
    }
    if (opt.rate <= 0) {
        for (; w->made < opt.count; w->made++)
            syscall(opt.nr, w->made);
        return;
    }
    uint64_t begun = now_ns();
    while (w->made < opt.count && !is_over()) {
        uint64_t next = now_ns() + SLICE_NS;
        uint64_t due = (uint64_t)((double)(next - begun) * opt.rate / NS_PER_S);
        for (; w->made < due && w->made < opt.count && !is_over(); w->made++)
            syscall(opt.nr, w->made);
        struct timespec until = {(time_t)(next / NS_PER_S), (long)(next % NS_PER_S)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
    }
}

// One thread's calls at full speed, weighed part by part.
static void make_slices(struct worker *w)
{
    double before = cpu_seconds();
    for (unsigned i = 0; i < opt.slices; i++) {
        uint64_t end = opt.count * (i + 1) / opt.slices;
        for (; w->made < end; w->made++)
            syscall(opt.nr, w->made);
        double after = cpu_seconds();
        slice_cpu[i] = after - before;
        before = after;
    }
}

static void *early_thread(void *arg)
{
    struct worker *w = arg;
    w->tid = gettid();
    pthread_barrier_wait(&ready);
    pthread_barrier_wait(&start);
    make_calls(w);
    return NULL;
}

static void *later_thread(void *arg)
{
    struct worker *w = arg;
    w->tid = gettid();
    make_calls(w);
    return NULL;
}

static void print_tids(unsigned from, unsigned to)
{
    printf("[");
    for (unsigned i = from; i < to; i++)
        printf("%s%d", i > from ? "," : "", workers[i].tid);
    printf("]");
}

static void begin(void)
{
    printf("}\n");
    fflush(stdout);
    if (!opt.now)
        wait_line();
}

static void finish(uint64_t events, uint64_t begun_ns, double begun_cpu)
{
    printf("{\"events\":%llu,\"nr\":%ld,\"seconds\":%.6f,\"cpu_seconds\":%.6f,"
           "\"process_cpu_seconds\":%.6f",
           (unsigned long long)events, opt.nr, (double)(now_ns() - begun_ns) / NS_PER_S,
           cpu_seconds() - begun_cpu, cpu_seconds());
}

static void mode_count(void)
{
    unsigned all = opt.threads + opt.later;
    if (all == 0 || all > MAX_THREADS) {
        errno = EINVAL;
        die("threads");
    }
    if (opt.endless)
        opt.count = UINT64_MAX;
    if (opt.slices == 0 || opt.slices > MAX_SLICES || (opt.slices > 1 && (all > 1 || opt.rate > 0))) {
        errno = EINVAL;
        die("slices");
    }
    // one thread and none later: the main thread itself, so that perf's -t and -p see one task
    bool alone = opt.threads == 1 && opt.later == 0 && !opt.endless;
    if (alone) {
        workers[0].tid = gettid();
    } else {
        pthread_barrier_init(&ready, NULL, opt.threads + 1);
        pthread_barrier_init(&start, NULL, opt.threads + 1);
        for (unsigned i = 0; i < opt.threads; i++)
            if (pthread_create(&workers[i].thread, NULL, early_thread, &workers[i]))
                die("pthread_create");
        pthread_barrier_wait(&ready);
    }
    printf("{\"ready\":true,\"pid\":%d,\"tids\":", getpid());
    print_tids(0, opt.threads);
    begin();
    uint64_t begun = now_ns();
    double cpu = cpu_seconds();
    if (opt.slices > 1) {
        make_slices(&workers[0]);
    } else if (alone) {
        make_calls(&workers[0]);
    } else {
        pthread_barrier_wait(&start);
        for (unsigned i = opt.threads; i < all; i++)
            if (pthread_create(&workers[i].thread, NULL, later_thread, &workers[i]))
                die("pthread_create");
        if (opt.endless) {
            wait_line();
            atomic_store_explicit(&over, true, memory_order_relaxed);
        }
        for (unsigned i = 0; i < all; i++)
            pthread_join(workers[i].thread, NULL);
    }
    uint64_t events = 0;
    for (unsigned i = 0; i < all; i++)
        events += workers[i].made;
    finish(events, begun, cpu);
    printf(",\"tids\":");
    print_tids(0, opt.threads);
    printf(",\"later_tids\":");
    print_tids(opt.threads, all);
    printf(",\"slices\":[");
    for (unsigned i = 0; opt.slices > 1 && i < opt.slices; i++)
        printf("%s%.9f", i ? "," : "", slice_cpu[i]);
    printf("]");
}

static void map_executable(const char *path, unsigned maps)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        die(path);
    for (unsigned i = 0; i < maps; i++)
        if (mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED)
            die("mmap");
    close(fd);
}

// Goes to the next of these CPUs, which it gives.
static int go_on(const cpu_set_t *allowed, int at)
{
    cpu_set_t one;
    do
        at = (at + 1) % CPU_SETSIZE;
    while (!CPU_ISSET((size_t)at, allowed));
    CPU_ZERO(&one);
    CPU_SET((size_t)at, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        die("sched_setaffinity");
    return at;
}

static void mode_exec_child(void)
{
    cpu_set_t allowed;
    int at = sched_getcpu();
    map_executable(opt.library, 1);
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        die("sched_getaffinity");
    for (uint64_t i = 0; i < opt.each; i++) {
        if (opt.hop && i % opt.hop == 0)
            at = go_on(&allowed, at);
        syscall(opt.nr);
    }
    _exit(0);
}

static void mode_exec(void)
{
    char each[32], nr[32], hop[32];
    snprintf(each, sizeof each, "%llu", (unsigned long long)opt.each);
    snprintf(nr, sizeof nr, "%ld", opt.nr);
    snprintf(hop, sizeof hop, "%llu", (unsigned long long)opt.hop);
    printf("{\"ready\":true,\"pid\":%d", getpid());
    begin();
    uint64_t begun = now_ns();
    double cpu = cpu_seconds();
    pid_t first = 0, last = 0;
    for (uint64_t i = 0; i < opt.count; i++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid == 0) {
            execl("/proc/self/exe", "exec-child", "exec-child", "--each", each, "--nr", nr, "--hop",
                  hop, "--library", opt.library, (char *)NULL);
            _exit(127);
        }
        int status;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (status != 0) {
            errno = ECHILD;
            die("a child failed");
        }
        first = first ? first : pid;
        last = pid;
    }
    finish(opt.count * opt.each, begun, cpu);
    printf(",\"children\":%llu,\"first_pid\":%d,\"last_pid\":%d", (unsigned long long)opt.count,
           first, last);
}

static void mode_faults(void)
{
    long page = sysconf(_SC_PAGESIZE);
    char *area = mmap(NULL, opt.pages * (size_t)page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        die("mmap");
    madvise(area, opt.pages * (size_t)page, MADV_NOHUGEPAGE);
    struct rusage before, after;
    printf("{\"ready\":true,\"pid\":%d,\"address\":%llu", getpid(),
           (unsigned long long)(uintptr_t)area);
    begin();
    uint64_t begun = now_ns();
    double cpu = cpu_seconds();
    getrusage(RUSAGE_SELF, &before);
    for (uint64_t i = 0; i < opt.pages; i++)
        ((volatile char *)area)[i * (size_t)page] = 1;
    getrusage(RUSAGE_SELF, &after);
    finish(opt.pages, begun, cpu);
    printf(",\"minor_faults\":%ld", after.ru_minflt - before.ru_minflt);
}

static void mode_mem(void)
{
    printf("{\"ready\":true,\"pid\":%d,\"address\":%llu", getpid(),
           (unsigned long long)(uintptr_t)&mem_target);
    begin();
    uint64_t begun = now_ns();
    double cpu = cpu_seconds();
    for (uint64_t i = 0; i < opt.count; i++)
        mem_target = i;
    finish(opt.count, begun, cpu);
}

__attribute__((noinline)) static uint64_t spin_inner(uint64_t x)
{
    for (int i = 0; i < 10000; i++)
        __asm__ volatile("" : "+r"(x));
    return x + 1;
}

__attribute__((noinline)) static uint64_t spin_outer(uint64_t x)
{
    uint64_t y = spin_inner(x);
    __asm__ volatile("" : "+r"(y));
    return y;
}

static void mode_spin(void)
{
    printf("{\"ready\":true,\"pid\":%d", getpid());
    begin();
    uint64_t begun = now_ns(), turns = 0;
    double cpu = cpu_seconds();
    uint64_t until = begun + (uint64_t)(opt.seconds * NS_PER_S);
    while (now_ns() < until)
        turns = spin_outer(turns);
    finish(turns, begun, cpu);
}

static void mode_idle(void)
{
    pid_t *pids = calloc(opt.processes, sizeof *pids);
    if (!pids)
        die("calloc");
    pid_t parent = getpid();
    map_executable(opt.library, opt.maps); // the children inherit the mappings
    for (unsigned i = 0; i < opt.processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            die("fork");
        if (pids[i] == 0) {
            char name[16];
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            snprintf(name, sizeof name, "idle-%u", i);
            prctl(PR_SET_NAME, name);
            if (getppid() != parent)
                _exit(1);
            for (;;)
                pause();
        }
    }
    printf("{\"ready\":true,\"pid\":%d,\"processes\":%u", parent, opt.processes);
    begin();
    uint64_t begun = now_ns();
    double cpu = cpu_seconds();
    for (unsigned i = 0; i < opt.processes; i++)
        kill(pids[i], SIGKILL);
    for (unsigned i = 0; i < opt.processes; i++)
        waitpid(pids[i], NULL, 0);
    free(pids);
    finish(0, begun, cpu);
}

// A held thread that is killed stays until its tracer has waited for it, and its process with it.
static void reap(int signal)
{
    (void)signal;
    while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
        ;
}

// A signal would stop the whole process.
static void mode_hold_thread(void)
{
    if (ptrace(PTRACE_SEIZE, opt.tid, NULL, NULL) < 0)
        die("PTRACE_SEIZE");
    if (ptrace(PTRACE_INTERRUPT, opt.tid, NULL, NULL) < 0)
        die("PTRACE_INTERRUPT");
    if (waitpid(opt.tid, NULL, __WALL) < 0)
        die("waitpid");
    signal(SIGCHLD, reap);
    printf("{\"ready\":true,\"pid\":%d", getpid());
    begin();
    uint64_t begun = now_ns();
    finish(0, begun, cpu_seconds()); // the thread goes on when its tracer is gone
}

static void parse(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i];
        if (!strcmp(name, "--now")) {
            opt.now = true;
            continue;
        }
        if (!strcmp(name, "--hold")) {
            opt.hold = true;
            continue;
        }
        if (i + 1 == argc) {
            errno = EINVAL;
            die(name);
        }
        const char *value = argv[++i];
        if (!strcmp(name, "--count"))
            opt.count = strtoull(value, NULL, 0);
        else if (!strcmp(name, "--endless"))
            opt.endless = strtoul(value, NULL, 0) != 0;
        else if (!strcmp(name, "--pages"))
            opt.pages = strtoull(value, NULL, 0);
        else if (!strcmp(name, "--each"))
            opt.each = strtoull(value, NULL, 0);
        else if (!strcmp(name, "--hop"))
            opt.hop = strtoull(value, NULL, 0);
        else if (!strcmp(name, "--threads"))
            opt.threads = (unsigned)strtoul(value, NULL, 0);
        else if (!strcmp(name, "--later"))
            opt.later = (unsigned)strtoul(value, NULL, 0);
        else if (!strcmp(name, "--slices"))
            opt.slices = (unsigned)strtoul(value, NULL, 0);
        else if (!strcmp(name, "--processes"))
            opt.processes = (unsigned)strtoul(value, NULL, 0);
        else if (!strcmp(name, "--maps"))
            opt.maps = (unsigned)strtoul(value, NULL, 0);
        else if (!strcmp(name, "--rate"))
            opt.rate = strtod(value, NULL);
        else if (!strcmp(name, "--seconds"))
            opt.seconds = strtod(value, NULL);
        else if (!strcmp(name, "--nr"))
            opt.nr = strtol(value, NULL, 0);
        else if (!strcmp(name, "--cpu"))
            opt.cpu = (int)strtol(value, NULL, 0);
        else if (!strcmp(name, "--tid"))
            opt.tid = (pid_t)strtol(value, NULL, 0);
        else if (!strcmp(name, "--library"))
            opt.library = value;
        else {
            errno = EINVAL;
            die(name);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"count", mode_count},
                 {"exec", mode_exec},
                 {"exec-child", mode_exec_child},
                 {"faults", mode_faults},
                 {"mem", mode_mem},
                 {"spin", mode_spin},
                 {"idle", mode_idle},
                 {"hold-thread", mode_hold_thread}};
    parse(argc, argv);
    pin();
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (argc < 2 || strcmp(argv[1], modes[i].name))
            continue;
        modes[i].run();
        printf("}\n");
        fflush(stdout);
        if (opt.hold)
            wait_line();
        return 0;
    }
    fprintf(stderr, "usage: generator count|exec|faults|mem|spin|idle|hold-thread [options], see "
                    "generator.c\n");
    return 2;
}
