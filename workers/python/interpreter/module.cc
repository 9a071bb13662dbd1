// The extension module ringfeed._worker: the worker's runtime, for a Python process that runs a
// stage of the kind python. `python -m ringfeed.worker` is the program; pyclient/ringfeed/worker
// has what is in Python.
//
// A process has one lane, which the main thread runs; it holds the interpreter only while the stage
// calls Python.
#include <fmt/format.h>
#include <google/protobuf/text_format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"
#include "ringfeed/shm/result.h"
#include "ringfeed/worker/random.h"
#include "ringfeed/worker/sample.h"
#include "ringfeed/worker/stage.h"
#include "workers/programs/all.h"
#include "workers/python/batch_function.h"
#include "workers/python/dataset_function.h"
#include "workers/python/interpreter/encode.h"
#include "workers/python/interpreter/gather.h"
#include "workers/python/interpreter/python_api.h"
#include "workers/python/interpreter/sample_object.h"
#include "workers/python/object_check.h"
#include "workers/python/remote_settings.h"
#include "workers/python/sample_function.h"
#include "workers/python/source_function.h"
#include "workers/runtime/registry.h"
#include "workers/runtime/setup.h"
#include "workers/runtime/worker.h"
#include "workers/samples/sample_text.h"

namespace ringfeed::interpreter {
namespace {

// The main thread's, while it runs the lane.
PyThreadState* released = nullptr;

class Held {
 public:
  Held() noexcept {
    if (released != nullptr)
      PyEval_RestoreThread(std::exchange(released, nullptr));
    else
      nested_ = true;
  }
  ~Held() {
    if (!nested_) released = PyEval_SaveThread();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  bool nested_ = false;
};

// What Python is told of a stage, see ringfeed/worker/objects.py.
PyObject* spec_of(const ObjectSettings& settings, const std::string& stage, std::uint32_t lane,
                  std::uint32_t lanes, std::uint64_t key, std::uint64_t feed = 0) {
  const Ref path(PyList_New(0));
  for (const std::string& one : settings.python_path) {
    const Ref item(text(one));
    if (!path || !item || PyList_Append(path.get(), item.get()) != 0) return nullptr;
  }
  return Py_BuildValue("{s:s, s:s, s:O, s:i, s:i, s:s, s:s, s:s, s:s, s:I, s:I, s:K, s:K}",
                       "object", settings.object.c_str(), "options", settings.options.c_str(),
                       "python_path", path.get(), "source", settings.source ? 1 : 0, "batch",
                       settings.batch ? 1 : 0, "fields", settings.fields.c_str(), "state",
                       settings.state.c_str(), "batcher", "python_batcher", "stage", stage.c_str(),
                       "lane", static_cast<unsigned>(lane), "lanes", static_cast<unsigned>(lanes),
                       "key", static_cast<unsigned long long>(key), "feed",
                       static_cast<unsigned long long>(feed));
}

// The exception that is set, as one sentence; clears it.
std::string take_exception() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Ref owned_type(type);
  const Ref owned_value(value);
  const Ref owned_traceback(traceback);
  const Ref name(type == nullptr ? nullptr : PyObject_GetAttrString(type, "__name__"));
  if (PyErr_Occurred()) PyErr_Clear();
  return fmt::format("{}: {}", name ? text_of(name.get()) : "error", text_of(value));
}

// What calls.py's `failed` makes of the exception that is set.
Ref failure_of_exception(PyObject* failed) {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Ref owned_type(type);
  const Ref owned_value(value);
  const Ref owned_traceback(traceback);
  return Ref(value == nullptr ? nullptr : PyObject_CallFunctionObjArgs(failed, value, nullptr));
}
// `to`: anything with `error` and `traceback`.
template <typename To>
void take_failure(PyObject* failure, To& to) {
  const Ref error(failure == nullptr ? nullptr : PyObject_GetAttrString(failure, "error"));
  const Ref traceback(failure == nullptr ? nullptr : PyObject_GetAttrString(failure, "traceback"));
  PyErr_Clear();
  to.error = error ? text_of(error.get()) : "RuntimeError";
  to.traceback = traceback ? text_of(traceback.get()) : "";
}

// What a stage gives to Python: a list of Samples. Those that somebody still has when it goes get
// copies of their records.
class Samples {
 public:
  // Not sound(): an exception is set, or a record is no sample, which is a fault of the stage that
  // made it.
  Samples(std::span<const SampleFunction::Input> inputs, bool zero_copy) : list_(PyList_New(0)) {
    sound_ = static_cast<bool>(list_);
    samples_.reserve(inputs.size());
    for (const SampleFunction::Input& input : inputs) {
      SampleObject* const sample = sound_ && SampleView::open(input.sample)
                                       ? new_sample(input.sample, input.tag, input.seed, zero_copy)
                                       : nullptr;
      sound_ =
          sample != nullptr && PyList_Append(list_.get(), reinterpret_cast<PyObject*>(sample)) == 0;
      if (sample != nullptr) samples_.push_back(sample);
      if (!sound_) break;
    }
  }
  ~Samples() {
    list_ = Ref();
    for (SampleObject* const sample : samples_) let_go(sample);
  }
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;

  [[nodiscard]] bool sound() const noexcept { return sound_; }
  [[nodiscard]] PyObject* list() const noexcept { return list_.get(); }

 private:
  Ref list_;
  std::vector<SampleObject*> samples_;
  bool sound_ = false;
};
std::string why_unsound() { return PyErr_Occurred() ? take_exception() : "a record is no sample"; }

// Calls the object of a stage: ringfeed/worker/calls.py's `Calls`, whose run() takes a list of
// Samples and returns a list with an outcome for each.
class PythonFunction final : public SampleFunction {
 public:
  explicit PythonFunction(Ref calls, bool zero_copy)
      : calls_(std::move(calls)), zero_copy_(zero_copy) {
    failure_ = Ref(PyObject_GetAttrString(calls_.get(), "failure"));
    failed_ = Ref(PyObject_GetAttrString(calls_.get(), "failed"));
    run_ = Ref(PyObject_GetAttrString(calls_.get(), "run"));
  }
  ~PythonFunction() override {
    const Held held;
    run_ = Ref();
    failure_ = Ref();
    failed_ = Ref();
    calls_ = Ref();
  }

  void run(std::span<const Input> inputs, std::vector<Outcome>& outcomes) override {
    const Held held;
    const std::size_t before = outcomes.size();
    outcomes.resize(before + inputs.size());
    const Samples samples(inputs, zero_copy_);
    bool sound = samples.sound();
    if (sound) {
      const Ref results(PyObject_CallFunctionObjArgs(run_.get(), samples.list(), nullptr));
      sound = results && PyList_Check(results.get()) &&
              PyList_Size(results.get()) == static_cast<Py_ssize_t>(inputs.size());
      for (std::size_t i = 0; sound && i < inputs.size(); ++i) {
        take(PyList_GetItem(results.get(), static_cast<Py_ssize_t>(i)), outcomes[before + i]);
      }
    }
    if (!sound) {
      const std::string why = why_unsound();
      for (std::size_t i = before; i < outcomes.size(); ++i) {
        outcomes[i] = {.error = "RuntimeError", .traceback = why};
      }
    }
  }

 private:
  // What came of one sample: None, a sample, a list of them, or a failure.
  void take(PyObject* result, Outcome& outcome) const {
    if (result == Py_None) return;
    bool encoded = true;
    if (PyList_CheckExact(result)) {
      const Py_ssize_t count = PyList_Size(result);
      outcome.samples.reserve(static_cast<std::size_t>(count));
      for (Py_ssize_t i = 0; encoded && i < count; ++i) {
        encoded = encode(PyList_GetItem(result, i), outcome.samples.emplace_back());
      }
    } else if (PyObject_IsInstance(result, failure_.get()) == 1) {
      take_failure(result, outcome);
      return;
    } else {
      encoded = encode(result, outcome.samples.emplace_back());
    }
    if (encoded) return;
    outcome.samples.clear();
    take_failure(failure_of_exception(failed_.get()).get(), outcome);
  }

  Ref calls_;
  Ref run_;
  Ref failure_;  // the class
  Ref failed_;   // makes one of an exception
  bool zero_copy_;
};

// `make(spec)` builds what calls the stage's object.
PyObject* made(PyObject* make, const StageContext& context) {
  const Ref spec(spec_of(object_of_stage(context.config, context.feed), context.stage, context.lane,
                         context.lanes, context.key, context.feed_id));
  return spec ? PyObject_CallFunctionObjArgs(make, spec.get(), nullptr) : nullptr;
}
Error not_made(const StageContext& context) {
  return {ErrorCode::kConfiguration,
          fmt::format("stage '{}': object {}: {}", context.stage,
                      object_of_stage(context.config, context.feed).object, take_exception())};
}

Result<std::unique_ptr<SampleFunction>> open_function(PyObject* make, const StageContext& context) {
  const Held held;
  Ref calls(made(make, context));
  const Ref zero_copy(calls ? PyObject_GetAttrString(calls.get(), "zero_copy") : nullptr);
  if (!zero_copy) return not_made(context);
  return std::unique_ptr<SampleFunction>(
      std::make_unique<PythonFunction>(std::move(calls), PyObject_IsTrue(zero_copy.get()) == 1));
}

// Calls the object of a stage that makes batches: ringfeed/worker/batches.py's `Batches`, whose
// run() takes a list of Samples, a seed and memory for each column.
class PythonBatches final : public BatchFunction {
 public:
  PythonBatches(Ref batches, bool zero_copy) : batches_(std::move(batches)), zero_copy_(zero_copy) {
    run_ = Ref(PyObject_GetAttrString(batches_.get(), "run"));
  }
  ~PythonBatches() override {
    const Held held;
    run_ = Ref();
    batches_ = Ref();
  }

  Outcome run(std::span<const Input> inputs, std::uint64_t seed,
              std::span<const Column> columns) override {
    const Held held;
    const Samples samples(inputs, zero_copy_);
    const Ref views(columns.empty() ? Ref::borrowed(Py_None) : views_of(columns));
    const Ref number(PyLong_FromUnsignedLongLong(seed));
    const Ref failure(samples.sound() && views && number
                          ? PyObject_CallFunctionObjArgs(run_.get(), samples.list(), number.get(),
                                                         views.get(), nullptr)
                          : nullptr);
    Outcome outcome;
    if (!failure) {
      outcome = {.error = "RuntimeError", .traceback = why_unsound()};
    } else if (failure.get() != Py_None) {
      take_failure(failure.get(), outcome);
    }
    return outcome;
  }

 private:
  // A list of memoryviews; two of each column that has offsets.
  static Ref views_of(std::span<const Column> columns) {
    Ref list(PyList_New(0));
    const auto add = [&list](std::span<std::byte> bytes) {
      const Ref view(PyMemoryView_FromMemory(reinterpret_cast<char*>(bytes.data()),
                                             static_cast<Py_ssize_t>(bytes.size()), PyBUF_WRITE));
      return view && PyList_Append(list.get(), view.get()) == 0;
    };
    for (const Column& column : columns) {
      if (!list || !add(column.bytes)) return Ref();
      if (!column.offsets.empty() && !add(column.offsets)) return Ref();
    }
    return list;
  }

  Ref batches_;
  Ref run_;
  bool zero_copy_;
};

Result<std::unique_ptr<BatchFunction>> open_batches(PyObject* make, const StageContext& context) {
  const Held held;
  Ref batches(made(make, context));
  const Ref zero_copy(batches ? PyObject_GetAttrString(batches.get(), "zero_copy") : nullptr);
  if (!zero_copy) return not_made(context);
  return std::unique_ptr<BatchFunction>(
      std::make_unique<PythonBatches>(std::move(batches), PyObject_IsTrue(zero_copy.get()) == 1));
}

// Ends the feed: for threads of a stage's object, which may have something to say when the stage is
// over.
std::function<void(std::string_view)> fail_feed;

PyObject* module_fail(PyObject*, PyObject* reason) {
  const std::string text = text_of(reason);
  if (!fail_feed) {
    PyErr_SetString(PyExc_RuntimeError, "no stage runs here");
    return nullptr;
  }
  fail_feed(text);
  return Ref::borrowed(Py_None).release();
}

// Reads the object of a source: ringfeed/worker/sources.py's `Source`.
class PythonReader final : public SourceFunction {
 public:
  explicit PythonReader(Ref source) : source_(std::move(source)) {
    failure_ = Ref(PyObject_GetAttrString(source_.get(), "failure"));
    failed_ = Ref(PyObject_GetAttrString(source_.get(), "failed"));
  }
  ~PythonReader() override {
    const Held held;
    source_ = Ref();
    failure_ = Ref();
    failed_ = Ref();
    begin_failure_ = Ref();
  }

  void begin(std::uint64_t epoch, const std::vector<std::byte>& cursor,
             std::uint64_t given) override {
    const Held held;
    // No bytes at all would be None.
    const char* const bytes = cursor.empty() ? "" : reinterpret_cast<const char*>(cursor.data());
    const Ref begun(PyObject_CallMethod(
        source_.get(), "begin", "Ky#K", static_cast<unsigned long long>(epoch), bytes,
        static_cast<Py_ssize_t>(cursor.size()), static_cast<unsigned long long>(given)));
    if (!begun) begin_failure_ = failure_of_exception(failed_.get());
  }

  Items next(std::size_t most) override {
    const Held held;
    Items items;
    if (begin_failure_) {
      take_failure(begin_failure_.get(), items);
      begin_failure_ = Ref();
      return items;
    }
    // A list of pairs, whether it is the end, and a failure or None.
    const Ref said(PyObject_CallMethod(source_.get(), "next", "n", static_cast<Py_ssize_t>(most)));
    PyObject* pairs = nullptr;
    PyObject* end = nullptr;
    PyObject* failure = nullptr;
    if (!said || !PyArg_ParseTuple(said.get(), "OOO", &pairs, &end, &failure)) {
      take_failure(failure_of_exception(failed_.get()).get(), items);
      return items;
    }
    items.end = PyObject_IsTrue(end) == 1;
    const Py_ssize_t count = PyList_Size(pairs);
    items.items.reserve(static_cast<std::size_t>(count));
    for (Py_ssize_t i = 0; i < count; ++i)
      take(PyList_GetItem(pairs, i), items.items.emplace_back());
    if (failure != Py_None) take_failure(failure, items);
    return items;
  }

 private:
  void take(PyObject* pair, Item& item) const {
    PyObject* const cursor = PyTuple_GetItem(pair, 1);
    PyObject* const sample = PyTuple_GetItem(pair, 0);
    const auto bytes = std::as_bytes(
        std::span(PyBytes_AsString(cursor), static_cast<std::size_t>(PyBytes_Size(cursor))));
    item.cursor.assign(bytes.begin(), bytes.end());
    if (PyObject_IsInstance(sample, failure_.get()) == 1) return take_failure(sample, item);
    if (encode(sample, item.sample)) return;
    item.sample.clear();
    take_failure(failure_of_exception(failed_.get()).get(), item);
  }

  Ref source_;
  Ref failure_;  // the class
  Ref failed_;   // makes one of an exception
  Ref begin_failure_;
};

Result<std::unique_ptr<SourceFunction>> open_source(PyObject* make, const StageContext& context) {
  const Held held;
  fail_feed = [fail = context.fail, stage = context.stage](std::string_view reason) {
    fail(fmt::format("stage '{}': {}", stage, reason));
  };
  Ref source(made(make, context));
  if (!source) return not_made(context);
  return std::unique_ptr<SourceFunction>(std::make_unique<PythonReader>(std::move(source)));
}

// The call of works_on() that is open to Python, while a batch is made.
const std::function<void(std::uint32_t)>* named_by = nullptr;

// Calls what makes batches of a dataset: ringfeed/torch/_worker.py's `Lane`, whose run() takes a
// request and the state, and returns the head, the new state or None, counts, and True if the state
// is appended.
class PythonDataset final : public DatasetFunction {
 public:
  explicit PythonDataset(Ref lane) : lane_(std::move(lane)) {
    run_ = Ref(PyObject_GetAttrString(lane_.get(), "run"));
    const Ref table(PyObject_GetAttrString(lane_.get(), "requests"));
    if (table && PyObject_GetBuffer(table.get(), &table_, PyBUF_WRITABLE) == 0) has_table_ = true;
    PyErr_Clear();
  }
  ~PythonDataset() override {
    const Held held;
    if (has_table_) PyBuffer_Release(&table_);
    run_ = Ref();
    lane_ = Ref();
  }

  std::span<std::byte> requests() override {
    if (!has_table_) return {};
    return {static_cast<std::byte*>(table_.buf), static_cast<std::size_t>(table_.len)};
  }

  void begin(std::span<const std::byte> state) override {
    const Held held;
    const Ref bytes(state.empty() ? Ref::borrowed(Py_None) : bytes_object(state));
    const Ref begun(bytes ? PyObject_CallMethod(lane_.get(), "begin", "O", bytes.get()) : nullptr);
    if (!begun) throw Error(ErrorCode::kConfiguration, "the dataset: " + take_exception());
  }

  Outcome run(const Request& request,
              const std::function<void(std::uint32_t place)>& works_on) override {
    const Held held;
    named_by = &works_on;
    Outcome outcome;
    const Ref bytes(bytes_object(request.bytes));
    const Ref condemned(PyTuple_New(static_cast<Py_ssize_t>(request.condemned.size())));
    for (std::size_t i = 0; condemned && i < request.condemned.size(); ++i) {
      PyTuple_SetItem(condemned.get(), static_cast<Py_ssize_t>(i),
                      PyLong_FromUnsignedLong(request.condemned[i]));
    }
    const Ref said(bytes && condemned
                       ? PyObject_CallFunction(
                             run_.get(), "KKOIO", static_cast<unsigned long long>(request.number),
                             static_cast<unsigned long long>(request.kind), bytes.get(),
                             static_cast<unsigned>(request.slot), condemned.get())
                       : nullptr);
    named_by = nullptr;
    if (!said || !take(said.get(), outcome)) outcome.fault = take_exception();
    return outcome;
  }

 private:
  static Ref bytes_object(std::span<const std::byte> bytes) {
    return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                         static_cast<Py_ssize_t>(bytes.size())));
  }
  static bool take(PyObject* said, Outcome& outcome) {
    PyObject* state = nullptr;
    const char* head = nullptr;
    Py_ssize_t head_bytes = 0;
    unsigned long long counts[4] = {};
    int appended = 0;
    int raised = 0;
    if (!PyArg_ParseTuple(said, "y#OKKKKp|p", &head, &head_bytes, &state, &counts[0], &counts[1],
                          &counts[2], &counts[3], &raised, &appended)) {
      return false;
    }
    if (head_bytes != sizeof outcome.head || (state != Py_None && !PyBytes_Check(state))) {
      PyErr_SetString(PyExc_TypeError, "a batch has a head of 128 bytes, and a state of bytes");
      return false;
    }
    std::memcpy(outcome.head, head, sizeof outcome.head);
    if (state != Py_None) {
      const auto bytes = std::as_bytes(
          std::span(PyBytes_AsString(state), static_cast<std::size_t>(PyBytes_Size(state))));
      outcome.state.emplace(bytes.begin(), bytes.end());
    }
    outcome.appended = appended != 0;
    outcome.samples = counts[0];
    outcome.left_out = counts[1];
    outcome.fetch_ns = counts[2];
    outcome.collate_ns = counts[3];
    outcome.raised = raised != 0;
    return true;
  }

  Ref lane_;
  Ref run_;
  Py_buffer table_{};
  bool has_table_ = false;
};

Result<std::unique_ptr<DatasetFunction>> open_dataset(PyObject* make, const StageContext& context) {
  const Held held;
  Ref lane(made(make, context));
  if (!lane) return not_made(context);
  return std::unique_ptr<DatasetFunction>(std::make_unique<PythonDataset>(std::move(lane)));
}

// A batch of a dataset is being made: what follows is about the sample at this place of it.
PyObject* module_works_on(PyObject*, PyObject* place) {
  const unsigned long number = PyLong_AsUnsignedLong(place);
  if (PyErr_Occurred()) return nullptr;
  if (named_by != nullptr) (*named_by)(static_cast<std::uint32_t>(number));
  return Ref::borrowed(Py_None).release();
}

// Gives the indices of the batch at hand one by one, and says so for each as works_on() would: a
// call from Python costs more than many a sample.
struct Naming {
  PyObject ob_base;
  PyObject* indices;  // an iterator
  std::uint32_t place;
};
PyTypeObject* naming_type = nullptr;

PyObject* naming_next(PyObject* self) {
  auto* const naming = reinterpret_cast<Naming*>(self);
  PyObject* const index = PyIter_Next(naming->indices);
  if (index != nullptr && named_by != nullptr) (*named_by)(naming->place++);
  return index;
}

void naming_dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  Py_XDECREF(reinterpret_cast<Naming*>(self)->indices);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

bool make_naming_type() {
  static PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(naming_dealloc)},
                                {Py_tp_iter, reinterpret_cast<void*>(PyObject_SelfIter)},
                                {Py_tp_iternext, reinterpret_cast<void*>(naming_next)},
                                {0, nullptr}};
  static PyType_Spec spec = {"ringfeed._worker.Naming", sizeof(Naming), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  naming_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return naming_type != nullptr;
}

PyObject* module_naming(PyObject*, PyObject* indices) {
  static const auto allocate =
      reinterpret_cast<allocfunc>(PyType_GetSlot(naming_type, Py_tp_alloc));
  Ref iterator(PyObject_GetIter(indices));
  PyObject* const self = iterator ? allocate(naming_type, 0) : nullptr;
  if (self != nullptr) reinterpret_cast<Naming*>(self)->indices = iterator.release();
  return self;
}

PyObject* module_gather(PyObject*, PyObject* arguments) {
  PyObject* to = nullptr;
  PyObject* addresses = nullptr;
  Py_ssize_t row_bytes = 0;
  if (!PyArg_ParseTuple(arguments, "OO!n:gather", &to, &PyList_Type, &addresses, &row_bytes)) {
    return nullptr;
  }
  auto* const place = static_cast<std::byte*>(PyLong_AsVoidPtr(to));
  std::vector<const std::byte*> rows(static_cast<std::size_t>(PyList_Size(addresses)));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<const std::byte*>(
        PyLong_AsVoidPtr(PyList_GetItem(addresses, static_cast<Py_ssize_t>(i))));
  }
  if (PyErr_Occurred()) return nullptr;
  Py_BEGIN_ALLOW_THREADS;
  gather(place, rows, static_cast<std::size_t>(row_bytes));
  Py_END_ALLOW_THREADS;
  return Ref::borrowed(Py_None).release();
}

// Runs `body` without the interpreter's lock, and turns an Error into an exception.
template <typename Body>
PyObject* outside(Body&& body) {
  released = PyEval_SaveThread();
  std::string fault;
  int status = 1;
  try {
    status = body();
  } catch (const Error& error) {
    fault = error.message();
  } catch (const std::exception& error) {
    fault = error.what();
  }
  PyEval_RestoreThread(std::exchange(released, nullptr));
  if (fault.empty()) return PyLong_FromLong(status);
  PyErr_SetString(PyExc_RuntimeError, fault.c_str());
  return nullptr;
}

PyObject* module_run(PyObject*, PyObject* arguments) {
  int setup_fd = 0;
  PyObject* make = nullptr;
  PyObject* coerce = nullptr;
  int log_fd = STDERR_FILENO;
  if (!PyArg_ParseTuple(arguments, "iOO|i:run", &setup_fd, &make, &coerce, &log_fd)) return nullptr;
  set_coerce(Ref::borrowed(coerce).release());
  Py_INCREF(make);
  set_function_opener([make](const StageContext& context) { return open_function(make, context); });
  set_source_opener([make](const StageContext& context) { return open_source(make, context); });
  set_batch_opener([make](const StageContext& context) { return open_batches(make, context); });
  set_dataset_opener([make](const StageContext& context) { return open_dataset(make, context); });
  return outside([setup_fd, log_fd] {
    Registry registry;
    register_all_stages(registry);
    return run_worker(setup_fd, registry, FirstLane::kCallersThread, log_fd);
  });
}

// For whoever starts a feed of stages that need no object of their own to be checked.
PyObject* module_plan_of(PyObject*, PyObject* arguments) {
  const char* text = nullptr;
  if (!PyArg_ParseTuple(arguments, "s:plan_of", &text)) return nullptr;
  std::string plan;
  try {
    DataLoaderConfig config;
    if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
      PyErr_SetString(PyExc_ValueError, "it is not the text of a configuration");
      return nullptr;
    }
    Registry registry;
    register_all_stages(registry);
    plan = plan_pipeline(config, registry).SerializeAsString();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return PyBytes_FromStringAndSize(plan.data(), static_cast<Py_ssize_t>(plan.size()));
}

PyObject* module_plan(PyObject*, PyObject* arguments) {
  PyObject* check = nullptr;
  if (!PyArg_ParseTuple(arguments, "O:plan", &check)) return nullptr;
  set_function_opener([](const StageContext&) -> Result<std::unique_ptr<SampleFunction>> {
    return Error(ErrorCode::kConfiguration, "a plan runs no stage");
  });
  set_source_opener([](const StageContext&) -> Result<std::unique_ptr<SourceFunction>> {
    return Error(ErrorCode::kConfiguration, "a plan runs no stage");
  });
  set_batch_opener([](const StageContext&) -> Result<std::unique_ptr<BatchFunction>> {
    return Error(ErrorCode::kConfiguration, "a plan runs no stage");
  });
  set_dataset_opener([](const StageContext&) -> Result<std::unique_ptr<DatasetFunction>> {
    return Error(ErrorCode::kConfiguration, "a plan runs no stage");
  });
  Py_INCREF(check);
  set_object_check([check](const ObjectSettings& settings) -> std::string {
    const Held held;
    const Ref spec(spec_of(settings, "", 0, 1, 0));
    const Ref said(spec ? PyObject_CallFunctionObjArgs(check, spec.get(), nullptr) : nullptr);
    return said ? text_of(said.get()) : take_exception();
  });
  return outside([] {
    Registry registry;
    register_all_stages(registry);
    return print_plan(registry);
  });
}

constexpr const char* kNoSampleText = "the record is no sample";

std::span<const std::byte> bytes_of(PyObject* bytes) {
  return {reinterpret_cast<const std::byte*>(PyBytes_AsString(bytes)),
          static_cast<std::size_t>(PyBytes_Size(bytes))};
}

// The spec of the stage that the supervisor names over the socket, for whoever runs no lane.
PyObject* module_spec(PyObject*, PyObject* arguments) {
  int fd = 0;
  if (!PyArg_ParseTuple(arguments, "i:spec", &fd)) return nullptr;
  try {
    std::vector<shm::Fd> descriptors;
    const WorkerSetup setup = receive_setup(fd, descriptors);
    DataLoaderConfig config;
    if (config.ParseFromString(setup.config()) && setup.lanes_size() != 0) {
      const std::string& name = setup.lanes(0).stage();
      for (const StageConfig& stage : config.stages()) {
        if (stage.name() != name) continue;
        Ref spec(spec_of(object_of_stage(stage, config), name, 0, 1, mix(setup.seed(), mix(name))));
        // Of a stage that is called, how many samples it may get at once.
        const Ref most(PyLong_FromUnsignedLong(stage.has_python() ? stage.python().batch() : 1));
        if (!spec || !most || PyDict_SetItemString(spec.get(), "at_once", most.get()) != 0) {
          return nullptr;
        }
        return spec.release();
      }
    }
    PyErr_SetString(PyExc_RuntimeError, "the setup names no stage in Python");
  } catch (const Error& error) {
    PyErr_SetString(PyExc_RuntimeError, error.message().c_str());
  }
  return nullptr;
}

PyObject* module_sample(PyObject*, PyObject* arguments) {
  PyObject* record = nullptr;
  unsigned long long tag[2] = {0, 0};
  unsigned long long key = 0;
  int zero_copy = 0;
  if (!PyArg_ParseTuple(arguments, "SKKKp:sample", &record, &tag[0], &tag[1], &key, &zero_copy)) {
    return nullptr;
  }
  const auto bytes = bytes_of(record);
  if (!SampleView::open(bytes)) {
    PyErr_SetString(PyExc_ValueError, kNoSampleText);
    return nullptr;
  }
  SampleObject* const sample =
      new_sample(bytes, {tag[0], tag[1]}, mix(mix(key, tag[0]), tag[1]), zero_copy != 0);
  if (sample == nullptr) return nullptr;
  sample->kept = Ref::borrowed(record).release();
  return reinterpret_cast<PyObject*>(sample);
}

PyObject* module_encoded(PyObject*, PyObject* arguments) {
  PyObject* object = nullptr;
  PyObject* coerce = nullptr;
  if (!PyArg_ParseTuple(arguments, "OO:encoded", &object, &coerce)) return nullptr;
  static const bool set = [coerce] {
    set_coerce(Ref::borrowed(coerce).release());
    return true;
  }();
  std::vector<std::byte> bytes;
  if (!set || !encode(object, bytes)) return nullptr;
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                   static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* module_sample_text(PyObject*, PyObject* arguments) {
  PyObject* record = nullptr;
  if (!PyArg_ParseTuple(arguments, "S:sample_text", &record)) return nullptr;
  const std::optional<SampleView> sample = SampleView::open(bytes_of(record));
  if (!sample) {
    PyErr_SetString(PyExc_ValueError, kNoSampleText);
    return nullptr;
  }
  Ref lines(PyList_New(0));
  for (const std::string& one : sample_text(*sample)) {
    const Ref line(text(one));
    if (!lines || !line || PyList_Append(lines.get(), line.get()) != 0) return nullptr;
  }
  return lines.release();
}

PyObject* module_kinds(PyObject*, PyObject*) {
  return outside([] {
    Registry registry;
    register_all_stages(registry);
    return print_kinds(registry);
  });
}

}  // namespace
}  // namespace ringfeed::interpreter

// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): Python's name for it
PyMODINIT_FUNC PyInit__worker() {
  using namespace ringfeed::interpreter;
  static PyMethodDef methods[] = {
      {"run", module_run, METH_VARARGS,
       "run(setup_fd, make, coerce): runs the lane that the supervisor describes."},
      {"plan", module_plan, METH_VARARGS, "plan(check): prints the plan of standard input."},
      {"plan_of", module_plan_of, METH_VARARGS,
       "plan_of(text): the plan of a configuration, as --plan prints it."},
      {"spec", module_spec, METH_VARARGS,
       "spec(fd): the spec of the stage that a warm parent, or a trial, is for."},
      {"sample", module_sample, METH_VARARGS,
       "sample(record, tag, tag, key, zero_copy): the sample that a stage gets of a record."},
      {"encoded", module_encoded, METH_VARARGS,
       "encoded(object, coerce): the record of what a stage returned."},
      {"sample_text", module_sample_text, METH_VARARGS,
       "sample_text(record): a line for each field."},
      {"fail", module_fail, METH_O, "fail(reason): the feed fails; does not return."},
      {"works_on", module_works_on, METH_O,
       "works_on(place): the sample of the batch at hand that is worked on from here."},
      {"naming", module_naming, METH_O,
       "naming(indices): an iterator over them that calls works_on(), with 0, 1 and so on."},
      {"gather", module_gather, METH_VARARGS,
       "gather(to, addresses, row_bytes): copies rows to one place, past the caches."},
      {"kinds", module_kinds, METH_NOARGS, "Prints the kinds of stages."},
      {nullptr, nullptr, 0, nullptr}};
  static PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT,
                                   .m_name = "ringfeed._worker",
                                   .m_doc = "The worker's runtime, for stages in Python.",
                                   .m_size = -1,
                                   .m_methods = methods,
                                   .m_slots = nullptr,
                                   .m_traverse = nullptr,
                                   .m_clear = nullptr,
                                   .m_free = nullptr};
  Ref module(PyModule_Create(&definition));
  if (!module || !add_sample_type(module.get()) || !make_naming_type()) return nullptr;
#ifdef RINGFEED_FREE_THREADED
  // One thread of a process calls it, so importing it need not bring the lock back for the user's.
  PyUnstable_Module_SetGIL(module.get(), Py_MOD_GIL_NOT_USED);
#endif
  return module.release();
}
