/* The compiled form of `pump.py`: same interface, same decisions; the tests hold both to one contract.

   It exists for one thing. Of an answer with many tokens nothing but the first and the end matters, and here every
   read in between is made and passed over without Python: no object, no call, no cold interpreter. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <structmember.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_READY = 64, MOST_RESTED = 32, READ_BYTES = 65536, MOST_READS = 16 };
static const uint32_t RESTING = EPOLLIN | EPOLLRDHUP | EPOLLET;
static const long long NS_PER_MS = 1000000, LONGEST_WAIT_NS = 86400LL * 1000000000LL;
enum { READS = 1, SKIMS = 2, KNOWN = 4 };  /* KNOWN: the resting epoll has it; it stays there until it is forgotten */

typedef struct {
    PyObject *watched;
    uint64_t passed_bytes;
    unsigned char flags;
} Slot;

typedef struct {
    PyObject_HEAD
    int urgent, resting;
    int rest_ms;
    int owed;  /* what rests is to be looked at without waiting */
    long long at_rest;
    long long seen;
    Slot *slots;
    Py_ssize_t room;
    char buffer[READ_BYTES];
} Pump;

/* -- what may be passed over -- */

#define LEADS(at, end, text) ((size_t)((end) - (at)) >= sizeof(text) - 1 && memcmp(at, text, sizeof(text) - 1) == 0)
#define FOLLOWS(at, begin, text) \
    ((size_t)((at) - (begin)) >= sizeof(text) - 1 && memcmp((at) - (sizeof(text) - 1), text, sizeof(text) - 1) == 0)

/* Whether there is a word in it that a verdict needs. Words are sought by a letter of theirs that is rare in answers. */
static int tells(const char *data, size_t length) {
    const char *at, *end = data + length;
    for (at = data; (at = memchr(at, '_', (size_t)(end - at))) != NULL; at++) {
        if (FOLLOWS(at, data, "completion") && LEADS(at, end, "_tokens")) return 1;
        int finish = FOLLOWS(at, data, "finish") && LEADS(at, end, "_reason");
        if (finish && !LEADS(at, end, "_reason\":null") && !LEADS(at, end, "_reason\": null")) return 1;
    }
    for (at = data; (at = memchr(at, 'D', (size_t)(end - at))) != NULL; at++) {
        if (FOLLOWS(at, data, "[") && LEADS(at, end, "DONE]")) return 1;
    }
    for (at = data; (at = memchr(at, 'v', (size_t)(end - at))) != NULL; at++) {
        if (FOLLOWS(at, data, "e") && LEADS(at, end, "vent:")) return 1;
    }
    return memmem(data, length, "\"error\"", 7) != NULL;
}

/* The value of a chunk size as it is usually spelled, without zeros in front and in one case; 0 for any other. */
static size_t chunk_size(const char *at, const char *end, const char **after) {
    size_t value = 0;
    int lower = 0, upper = 0;
    const char *first = at;
    for (; at < end && at - first < 4; at++) {
        char digit = *at;
        if (digit >= '0' && digit <= '9') value = value * 16 + (size_t)(digit - '0');
        else if (digit >= 'a' && digit <= 'f') value = value * 16 + (size_t)(digit - 'a' + 10), lower = 1;
        else if (digit >= 'A' && digit <= 'F') value = value * 16 + (size_t)(digit - 'A' + 10), upper = 1;
        else break;
    }
    if (at == first || *first == '0' || (lower && upper) || value > 2047) return 0;
    if (end - at < 2 || at[0] != '\r' || at[1] != '\n') return 0;
    *after = at + 2;
    return value;
}

static int is_plain(const char *data, size_t length) {
    const char *at = data, *end = data + length;
    while (at < end) {
        size_t size = chunk_size(at, end, &at);
        if (size == 0 || (size_t)(end - at) < size + 2 || at[size - 1] != '\n') return 0;
        at += size + 2;
    }
    return !tells(data, length);
}

static PyObject *module_plain(PyObject *module, PyObject *data) {
    char *bytes;
    Py_ssize_t length;
    (void)module;
    if (PyBytes_AsStringAndSize(data, &bytes, &length) < 0) return NULL;
    return PyBool_FromLong(is_plain(bytes, (size_t)length));
}

/* -- descriptors -- */

static Slot *slot_of(Pump *self, long number) {
    if (number < 0 || number >= self->room || self->slots[number].watched == NULL) {
        PyErr_Format(PyExc_KeyError, "descriptor %ld is not watched", number);
        return NULL;
    }
    return &self->slots[number];
}

static int control(int epoll, int what, int number, uint32_t events) {
    struct epoll_event event = {.events = events, .data = {.fd = number}};
    if (epoll_ctl(epoll, what, number, &event) == 0) return 0;
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static int make_room(Pump *self, int number) {
    if (number < self->room) return 0;
    Py_ssize_t room = self->room ? self->room : 64;
    while (room <= number) room *= 2;
    Slot *slots = PyMem_Realloc(self->slots, (size_t)room * sizeof(Slot));
    if (slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(slots + self->room, 0, (size_t)(room - self->room) * sizeof(Slot));
    self->slots = slots;
    self->room = room;
    return 0;
}

static PyObject *pump_watch(Pump *self, PyObject *arguments) {
    int number;
    unsigned int events;
    PyObject *watched;
    if (!PyArg_ParseTuple(arguments, "iOI:watch", &number, &watched, &events)) return NULL;
    if (control(self->urgent, EPOLL_CTL_ADD, number, events) < 0) return NULL;
    if (make_room(self, number) < 0) {
        epoll_ctl(self->urgent, EPOLL_CTL_DEL, number, NULL);
        return NULL;
    }
    Slot *slot = &self->slots[number];
    PyObject *before = slot->watched;
    Py_INCREF(watched);
    *slot = (Slot){.watched = watched};
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

static PyObject *pump_rewatch(Pump *self, PyObject *arguments) {
    int number;
    unsigned int events;
    if (!PyArg_ParseTuple(arguments, "iI:rewatch", &number, &events)) return NULL;
    if (control(self->urgent, EPOLL_CTL_MOD, number, events) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *pump_forget(Pump *self, PyObject *argument) {
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL) return NULL;
    int known = slot->flags & KNOWN;
    PyObject *watched = slot->watched;
    *slot = (Slot){0};
    Py_DECREF(watched);
    if (control(self->urgent, EPOLL_CTL_DEL, (int)number, 0) < 0) return NULL;
    if (known && control(self->resting, EPOLL_CTL_DEL, (int)number, 0) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *set_flag(Pump *self, PyObject *argument, unsigned char flag) {
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL) return NULL;
    slot->flags |= flag;
    Py_RETURN_NONE;
}

static PyObject *pump_read_from(Pump *self, PyObject *argument) { return set_flag(self, argument, READS); }

static PyObject *pump_skim(Pump *self, PyObject *argument) { return set_flag(self, argument, SKIMS); }

static PyObject *pump_rest(Pump *self, PyObject *argument) {
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    Slot *slot = slot_of(self, number);
    if (slot == NULL || control(self->urgent, EPOLL_CTL_MOD, (int)number, 0) < 0) return NULL;
    if (!(slot->flags & KNOWN)) {
        if (control(self->resting, EPOLL_CTL_ADD, (int)number, RESTING) < 0) return NULL;
        slot->flags |= KNOWN;
    }
    self->at_rest++;
    Py_RETURN_NONE;
}

static PyObject *pump_rouse(Pump *self, PyObject *argument) {
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (slot_of(self, number) == NULL || control(self->urgent, EPOLL_CTL_MOD, (int)number, EPOLLIN) < 0) return NULL;
    self->at_rest--;
    Py_RETURN_NONE;
}

/* -- waiting and reading -- */

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Takes over the reference to `data`; NULL is an error that is set. Whatever allocates may collect garbage, and what is
   collected may forget or watch descriptors: slots move, and their watchers go. */
static int hand_over(Pump *self, PyObject *found, int number, uint32_t events, PyObject *data) {
    if (data == NULL) return -1;
    Slot *slot = &self->slots[number];
    if (slot->watched == NULL) {
        Py_DECREF(data);
        return 0;
    }
    unsigned long long passed_bytes = slot->passed_bytes;
    slot->passed_bytes = 0;
    slot->flags &= (unsigned char)~SKIMS;
    PyObject *item = Py_BuildValue("NINKL", Py_NewRef(slot->watched), (unsigned int)events, data, passed_bytes, now_ns());
    if (item == NULL) return -1;
    int outcome = PyList_Append(found, item);
    Py_DECREF(item);
    return outcome;
}

/* Reads once. Returns the length, 0 where there is nothing more to read here, -1 with an error set. */
static ssize_t read_once(Pump *self, PyObject *found, int number, uint32_t events) {
    ssize_t length = recv(number, self->buffer, READ_BYTES, 0);
    Slot *slot = &self->slots[number];
    if (length > 0 && events == EPOLLIN && (slot->flags & SKIMS) && is_plain(self->buffer, (size_t)length)) {
        slot->passed_bytes += (uint64_t)length;
        return length;
    }
    PyObject *data;
    if (length >= 0) data = PyBytes_FromStringAndSize(self->buffer, length);
    else if (errno != EAGAIN && errno != EINTR) data = PyObject_CallFunction(PyExc_OSError, "is", errno, strerror(errno));
    else if (events & EPOLLOUT) data = Py_NewRef(Py_None);
    else return 0;
    if (hand_over(self, found, number, events, data) < 0) return -1;
    return length > 0 ? length : 0;
}

/* What rests is told once, so all of it is read, an end that came with the last bytes included; what would keep others
   waiting is told anew. */
static int read_all(Pump *self, PyObject *found, int number, uint32_t events) {
    for (int reads = 0; reads < MOST_READS; reads++) {
        ssize_t length = read_once(self, found, number, events);
        if (length < 0) return -1;
        if (length == 0 || (length < READ_BYTES && !(events & EPOLLRDHUP))) return 0;
    }
    return self->slots[number].flags & KNOWN ? control(self->resting, EPOLL_CTL_MOD, number, RESTING) : 0;
}

static int serve(Pump *self, PyObject *found, const struct epoll_event *ready, int count) {
    self->seen += count;
    for (int each = 0; each < count; each++) {
        int number = ready[each].data.fd;
        uint32_t events = ready[each].events;
        Slot *slot = &self->slots[number];
        if (slot->watched == NULL) continue;
        if (!(slot->flags & READS) || events == EPOLLOUT) {
            if (hand_over(self, found, number, events, Py_NewRef(Py_None)) < 0) return -1;
            continue;
        }
        if (read_all(self, found, number, events) < 0) return -1;
    }
    return 0;
}

static int wait_for(int epoll, struct epoll_event *ready, int most, int wait_ms) {
    int count;
    if (wait_ms) {
        Py_BEGIN_ALLOW_THREADS
        count = epoll_wait(epoll, ready, most, wait_ms);
        Py_END_ALLOW_THREADS
    } else {
        count = epoll_wait(epoll, ready, most, 0);
    }
    if (count >= 0) return count;
    if (errno == EINTR) return PyErr_CheckSignals();
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
}

static PyObject *pump_poll(Pump *self, PyObject *argument) {
    long long wait_ns = PyLong_AsLongLong(argument);
    if (wait_ns == -1 && PyErr_Occurred()) return NULL;
    if (wait_ns < 0) wait_ns = 0;
    if (wait_ns > LONGEST_WAIT_NS) wait_ns = LONGEST_WAIT_NS;
    PyObject *found = PyList_New(0);
    if (found == NULL) return NULL;
    long long due_ns = now_ns() + wait_ns;
    struct epoll_event ready[MOST_READY];
    for (;;) {
        int wait_ms = wait_ns > 0 && !self->owed ? (int)((wait_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
        if (self->at_rest && wait_ms > self->rest_ms) wait_ms = self->rest_ms;
        int count = wait_for(self->urgent, ready, MOST_READY, wait_ms);
        if (count < 0 || serve(self, found, ready, count) < 0) break;
        if (self->at_rest && !self->owed && PyList_Size(found)) {
            self->owed = 1;  /* what is urgent is told first; what rests has its turn in the next call */
            return found;
        }
        int rested = self->at_rest ? wait_for(self->resting, ready, MOST_RESTED, 0) : 0;
        if (rested < 0 || serve(self, found, ready, rested) < 0) break;
        self->owed = rested == MOST_RESTED;
        wait_ns = due_ns - now_ns();
        if (wait_ns <= 0 || PyList_Size(found)) return found;
    }
    Py_DECREF(found);
    return NULL;
}

/* -- the type -- */

static int pump_init(Pump *self, PyObject *arguments, PyObject *keywords) {
    static char *names[] = {"rest_ms", NULL};
    int rest_ms;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "i:Pump", names, &rest_ms)) return -1;
    if (self->urgent >= 0) {
        PyErr_SetString(PyExc_RuntimeError, "a pump is set up once");
        return -1;
    }
    self->urgent = epoll_create1(EPOLL_CLOEXEC);
    self->resting = self->urgent < 0 ? -1 : epoll_create1(EPOLL_CLOEXEC);
    if (self->resting < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    self->rest_ms = rest_ms;
    return 0;
}

static PyObject *pump_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
    (void)arguments, (void)keywords;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Pump *self = (Pump *)allocate(type, 0);
    if (self != NULL) self->urgent = self->resting = -1;
    return (PyObject *)self;
}

static int pump_traverse(Pump *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (Py_ssize_t number = 0; number < self->room; number++) Py_VISIT(self->slots[number].watched);
    return 0;
}

static int pump_clear(Pump *self) {
    for (Py_ssize_t number = 0; number < self->room; number++) Py_CLEAR(self->slots[number].watched);
    return 0;
}

static void pump_dealloc(Pump *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    pump_clear(self);
    PyMem_Free(self->slots);
    if (self->urgent >= 0) close(self->urgent);
    if (self->resting >= 0) close(self->resting);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef pump_methods[] = {
    {"watch", (PyCFunction)pump_watch, METH_VARARGS, "As PythonPump.watch."},
    {"rewatch", (PyCFunction)pump_rewatch, METH_VARARGS, "As PythonPump.rewatch."},
    {"forget", (PyCFunction)pump_forget, METH_O, "As PythonPump.forget."},
    {"read_from", (PyCFunction)pump_read_from, METH_O, "As PythonPump.read_from."},
    {"skim", (PyCFunction)pump_skim, METH_O, "As PythonPump.skim."},
    {"rest", (PyCFunction)pump_rest, METH_O, "As PythonPump.rest."},
    {"rouse", (PyCFunction)pump_rouse, METH_O, "As PythonPump.rouse."},
    {"poll", (PyCFunction)pump_poll, METH_O, "As PythonPump.poll."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef pump_members[] = {
    {"seen", T_LONGLONG, offsetof(Pump, seen), 0, "As PythonPump.seen."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot pump_slots[] = {
    {Py_tp_doc, "As PythonPump, compiled."},
    {Py_tp_new, pump_new},
    {Py_tp_init, pump_init},
    {Py_tp_dealloc, pump_dealloc},
    {Py_tp_traverse, pump_traverse},
    {Py_tp_clear, pump_clear},
    {Py_tp_methods, pump_methods},
    {Py_tp_members, pump_members},
    {0, NULL},
};

static PyType_Spec pump_spec = {
    .name = "dynamo_mlperf.load._pump.Pump",
    .basicsize = sizeof(Pump),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = pump_slots,
};

static PyMethodDef module_methods[] = {
    {"plain", module_plain, METH_O, "As skim.plain."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromSpec(&pump_spec);
    if (type == NULL) return -1;
    int outcome = PyModule_AddObjectRef(module, "Pump", type);
    Py_DECREF(type);
    return outcome < 0 ? -1 : PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dynamo_mlperf.load._pump",
    .m_doc = "The compiled form of dynamo_mlperf.load.pump.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__pump(void) { return PyModuleDef_Init(&module_definition); }
