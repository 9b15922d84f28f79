// The backend "dldist" for PyTorch's dispatcher: a c10d::Backend over a dldist.Group.
//
// PyTorch's ProcessGroup starts each call as an operation (c10d::allreduce_) whose kernel calls
// this backend, as for Gloo, so code that observes operations sees dldist's calls too. A call with
// plain tensors directly calls the group's method in the extension. All other calls use `runner`, a
// dldist.torch._runner.Runner, which is the Python half of this backend.
//
// No function here may hold the GIL while it waits: the group's methods release it.
//
// One source for PyTorch 2.9 and newer. Virtual methods that only some releases have are written
// without `override`. Other differences between releases are in the section "features", which
// depends on PyTorch's headers, never on its version.

#ifdef __clang__
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/record_function.h>
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/utils/pybind.h>
#include <torch/custom_class.h>
#include <torch/library.h>

// ---- features

namespace c10d {
struct CompletionHookArgs; // defined only since PyTorch 2.15
} // namespace c10d

namespace {

template <class Type>
concept IsDefined = requires { sizeof(Type); };

// The clock of times in c10d::WorkInfo: system_clock in PyTorch 2.9, steady_clock since 2.10.
using Clock = decltype(c10d::WorkInfo::timeStarted)::clock;

// OpType::REDUCE_SCATTER_TENSOR_COALESCED, or PyTorch's own substitute before 2.10.
template <class Type = c10d::OpType>
constexpr Type reduceScatterCoalescedType() {
  if constexpr (requires { Type::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return Type::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return Type::COALESCED;
  }
}

using at::Tensor;
using c10::intrusive_ptr;
using c10::ivalue::Future;
using c10d::OpType;
using c10d::WorkResult;
using std::chrono::milliseconds;
using Milliseconds = std::chrono::duration<float, std::milli>;

using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;

// ---- Python

// Holds the GIL; cheaper than pybind11's class on threads that Python already knows.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Returns true if the interpreter is finalizing, when other threads cannot take the GIL.
bool isPythonEnding() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// A reference to a Python object that any thread may release; kept if Python is finalizing.
class Held {
 public:
  Held() = default;
  explicit Held(PyObject* stolen) : object_(stolen) {}
  Held(Held&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Held() {
    if (object_ != nullptr && Py_IsInitialized() && !isPythonEnding()) {
      Gil gil;
      Py_DECREF(object_);
    }
  }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

PyObject* text(const char* name) {
  PyObject* made = PyUnicode_InternFromString(name);
  if (made == nullptr) {
    throw py::error_already_set();
  }
  return made;
}

// Returns a new reference.
PyObject* attribute(const char* module, const char* name) {
  return py::object(py::module_::import(module).attr(name)).release().ptr();
}

// The Python objects that this file uses. Created with the module, and never released.
struct Names {
  py::object core = py::module_::import("dldist._core");
  PyObject* async = py::make_tuple("async_op").release().ptr();
  PyObject* asyncAndTimeout = py::make_tuple("async_op", "timeout").release().ptr();
  PyObject* refusals = py::make_tuple(core.attr("DistArgumentError"), py::handle(PyExc_TypeError)).release().ptr();
  PyObject* failures = attribute("dldist._core", "DistError");
  PyObject* toTorchError = attribute("dldist.torch._errors", "to_torch_error");
  PyObject* isCompletionThread = attribute("dldist._base.callback_thread", "is_completion_thread");
  PyObject* wait = text("wait");
  PyObject* isCompleted = text("is_completed");
  PyObject* isSuccess = text("is_success");
  PyObject* exception = text("exception");
  PyObject* sourceRank = text("source_rank");
  PyObject* watch = text("_watch");
  PyObject* duration = text("_get_duration");
  PyObject* sequence = text("_get_sequence_number");
  std::vector<PyObject*> reductions; // by c10d::ReduceOp::RedOpType, without PREMUL_SUM

  Names() {
    for (const char* name : {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"}) {
      reductions.push_back(py::object(core.attr("ReduceOp").attr(name)).release().ptr());
    }
  }
};

const Names& names() {
  static const Names& made = *new Names();
  return made;
}

// Throws the current Python exception, converted to a class that PyTorch programs catch.
[[noreturn]] void throwTorchError() {
  py::error_already_set raised;
  // to_torch_error() returns the same exception with another class.
  py::object error = py::reinterpret_steal<py::object>(PyObject_CallOneArg(names().toTorchError, raised.value().ptr()));
  if (error) {
    PyObject* trace = raised.trace() ? raised.trace().ptr() : Py_None;
    PyException_SetTraceback(error.ptr(), trace);
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
  throw py::error_already_set();
}

// A Python exception that can be thrown repeatedly, as by every waiter of a future. An
// error_already_set of pybind11 can be restored to Python only once.
class Failure final : public std::exception {
 public:
  // Call with the GIL.
  explicit Failure(const py::error_already_set& raised)
      : error_(std::make_shared<Held>(Py_NewRef(raised.value().ptr()))), text_(raised.what()) {}

  const char* what() const noexcept override { return text_.c_str(); }

  // Raises the error in Python. Call with the GIL.
  void raise() const { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_->get())), error_->get()); }

 private:
  std::shared_ptr<const Held> error_;
  std::string text_;
};

// Converts a thrown error for a future, which may throw it repeatedly.
std::exception_ptr lasting(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const py::error_already_set& raised) {
    Gil gil;
    return std::make_exception_ptr(Failure(raised));
  } catch (...) {
    return thrown;
  }
}

void raiseFailures(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Failure& failure) {
    failure.raise();
  }
}

py::object checked(PyObject* result) {
  if (result == nullptr) {
    throwTorchError();
  }
  return py::reinterpret_steal<py::object>(result);
}

py::object callMethod(PyObject* object, PyObject* name) {
  return checked(PyObject_CallMethodNoArgs(object, name));
}

// ---- hooks

// Hooks by id; remove(id) removes a hook. Hooks run without the lock, because a hook may take other
// locks or change this table.
template <class... Args>
class HookTable {
 public:
  using Hook = std::function<void(Args...)>;

  void add(int64_t id, Hook hook) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::swap(hooks_[id], hook); // a replaced hook may take the GIL, so destroy it without the lock
    isEmpty_ = false;
  }

  void remove(int64_t id) {
    typename std::map<int64_t, Hook>::node_type removed; // destroyed without the lock, as in add()
    std::lock_guard<std::mutex> lock(mutex_);
    removed = hooks_.extract(id);
    isEmpty_ = hooks_.empty();
  }

  bool isEmpty() const { return isEmpty_.load(std::memory_order_relaxed); }

  // Calls the hooks by ascending id, without the GIL: a hook may wait for a thread that needs it.
  void call(const char* kind, Args... args) const {
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check() != 0) {
      released.emplace();
    }
    for (const auto& [id, hook] : copies()) {
      try {
        hook(args...);
      } catch (const std::exception& error) { // the operation has ended, so no caller can handle it
        LOG(ERROR) << kind << " hook failed: " << error.what();
      }
    }
  }

 private:
  std::map<int64_t, Hook> copies() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return hooks_;
  }

  std::atomic<bool> isEmpty_{true};
  mutable std::mutex mutex_; // guards hooks_
  std::map<int64_t, Hook> hooks_;
};

// A backend's hooks, shared with its works, which may outlive it.
struct Hooks {
  HookTable<> abort;
  HookTable<const c10d::CompletionHookArgs&> completion;

  // Called when an operation fails or the group is aborted; hooks may save data before an exit.
  void runAbortHooks() const {
    if (!abort.isEmpty()) {
      abort.call("abort");
    }
  }

  // Called when an operation has succeeded.
  template <class CompletionHookArgs = c10d::CompletionHookArgs>
  void runCompletionHooks(uint64_t key, float duration_ms) const {
    if constexpr (IsDefined<CompletionHookArgs>) {
      completion.call("completion", CompletionHookArgs{key, duration_ms});
    }
  }
};

// ---- works

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

// The properties of a call that its work reports.
struct CallFacts {
  uint64_t number; // the work's number in its backend, from 1
  milliseconds timeout;
  std::shared_ptr<const Hooks> hooks;
};

// A work of the backend. `work_` is a dldist.Work, or empty if the call has already succeeded.
class Work final : public c10d::Work {
 public:
  Work(int rank, OpType type, const char* title, const std::optional<Tensors>& inputs, CallFacts facts)
      : c10d::Work(rank, type, title, inputs), facts_(std::move(facts)), isProfiled_(title != nullptr) {}

  // Sets the result of starting the call. Call with the GIL.
  void begin(py::object work, TensorLists outputs) {
    outputs_ = std::move(outputs);
    if (!work.is_none()) {
      work_ = Held(work.release().ptr());
      if (isProfiled_) {
        auto self = intrusive_ptr<Work>::reclaim_copy(this);
        watch([self] { self->endEntry(); });
      }
    } else {
      endEntry();
    }
  }

  bool wait(milliseconds timeout) override {
    if (work_) {
      try {
        waitForEnd(timeout);
      } catch (...) {
        if (isCompleted()) { // also ends the profiler's entry, unless the call continues
          reportFailure();
        }
        throw;
      }
    }
    endEntry();
    return true;
  }

  bool isCompleted() override {
    if (!ask(names().isCompleted, true)) {
      return false;
    }
    endEntry();
    return true;
  }

  bool isSuccess() const override { return ask(names().isSuccess, true); }

  std::exception_ptr exception() const override {
    if (!work_) {
      return nullptr;
    }
    Gil gil;
    py::object error = callMethod(work_.get(), names().exception);
    if (error.is_none()) {
      return nullptr;
    }
    reportFailure();
    try {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
      throwTorchError();
    } catch (const py::error_already_set&) {
      return std::current_exception();
    }
  }

  int sourceRank() const override {
    TORCH_CHECK(work_, "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call.");
    Gil gil;
    return callMethod(work_.get(), names().sourceRank).cast<int>();
  }

  Tensors result() override {
    wait(kNoTimeout);
    return flat(outputs_);
  }

  void synchronize() override { wait(kNoTimeout); }

  // Waits for the call, since the CPU has no stream that could order later work after the call.
  void blockCurrentStream() override { wait(kNoTimeout); }

  float getDuration() const override { return ask<float>(names().duration, duration_ms_); }
  uint64_t getSequencenumber() const override { return ask<uint64_t>(names().sequence, 0); }

  milliseconds getTimeout() const { return facts_.timeout; }

  uint64_t getCompletionKey() const { return facts_.number; }

  // Runs the completion hooks once the call has succeeded. `duration_ms` is its duration if it has
  // already ended. Call with the GIL.
  void reportCompletion(float duration_ms) {
    duration_ms_ = duration_ms;
    auto self = intrusive_ptr<Work>::reclaim_copy(this);
    watch([self] {
      if (self->isSuccess()) {
        self->facts_.hooks->runCompletionHooks(self->getCompletionKey(), self->getDuration());
      }
    });
  }

  intrusive_ptr<Future> getFuture() override {
    bool isLists = outputs_.size() > 1;
    auto [future, isNew] =
        only(future_, isLists ? c10::ListType::create(c10::ListType::ofTensors()) : c10::ListType::ofTensors());
    if (isNew) {
      settle(future, [](Work& self) { return self.value(); }, nullptr);
    }
    return future;
  }

  // Returns a future of the outcome, which never fails.
  intrusive_ptr<Future> getFutureResult() override {
    auto [ending, isNew] = only(ending_, c10::IntType::get());
    if (isNew) {
      settle(
          ending,
          [](Work&) { return c10::IValue(static_cast<int64_t>(WorkResult::SUCCESS)); },
          [](bool isTimeout) {
            return c10::IValue(static_cast<int64_t>(isTimeout ? WorkResult::TIMEOUT : WorkResult::COMM_ERROR));
          });
    }
    return ending;
  }

  // Calls `then` once the call has ended: now, or later on a dldist thread. Call with the GIL.
  void watch(std::function<void()> then) {
    if (!work_) {
      then();
      return;
    }
    py::cpp_function function(std::move(then), py::call_guard<py::gil_scoped_release>());
    PyObject* args[] = {work_.get(), function.ptr()};
    checked(PyObject_VectorcallMethod(names().watch, args, 2, nullptr));
  }

 private:
  void waitForEnd(milliseconds timeout) {
    Gil gil;
    py::object limit = timeout > kNoTimeout ? py::cast(std::chrono::duration<double>(timeout).count()) : py::none();
    PyObject* args[] = {work_.get(), limit.ptr()};
    checked(PyObject_VectorcallMethod(names().wait, args, 2, nullptr));
  }

  // Returns the result of a method of the group's work, or `otherwise` if there is no work yet.
  template <class Value>
  Value ask(PyObject* method, Value otherwise) const {
    if (!work_) {
      return otherwise;
    }
    Gil gil;
    return callMethod(work_.get(), method).cast<Value>();
  }

  // Returns the future's value: the outputs, in a list for each input if there are several.
  c10::IValue value() const {
    if (outputs_.size() > 1) {
      return c10::IValue(outputs_);
    }
    return c10::IValue(flat(outputs_));
  }

  // Finds or creates the future in `place`. Returns true if created; then call settle() on it.
  std::pair<intrusive_ptr<Future>, bool> only(intrusive_ptr<Future>& place, const c10::TypePtr& type) {
    std::lock_guard<std::mutex> lock(futures_);
    bool isNew = !place;
    if (isNew) {
      place = c10::make_intrusive<Future>(type);
    }
    return {place, isNew};
  }

  // Completes a future when the call ends: with `value` or, if the call failed, with `ofFailure` if
  // given, else with the error.
  void settle(
      const intrusive_ptr<Future>& future,
      std::function<c10::IValue(Work&)> value,
      std::function<c10::IValue(bool)> ofFailure) {
    if (!work_) {
      future->markCompleted(value(*this));
      return;
    }
    Gil gil;
    // A callback that waits for this future would block the thread that completes it.
    if (checked(PyObject_CallNoArgs(names().isCompletionThread)).cast<bool>()) {
      try {
        wait(kNoTimeout);
      } catch (const py::error_already_set&) {
        // the future gets the error
      }
    }
    auto self = intrusive_ptr<Work>::reclaim_copy(this);
    try {
      watch([self, future, value = std::move(value), ofFailure = std::move(ofFailure)] {
        self->endEntry();
        std::exception_ptr failure = self->exception();
        if (!failure) {
          future->markCompleted(value(*self));
        } else if (ofFailure) {
          future->markCompleted(ofFailure(isTimeout(failure)));
        } else {
          future->setError(lasting(failure));
        }
      });
    } catch (...) { // otherwise another thread that waits for this future would wait forever
      future->setErrorIfNeeded(lasting(std::current_exception()));
      throw;
    }
  }

  static bool isTimeout(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const py::error_already_set& error) {
      Gil gil;
      return error.matches(PyExc_TimeoutError);
    }
  }

  // Runs the abort hooks, once.
  void reportFailure() const {
    if (!isFailureReported_.exchange(true)) {
      facts_.hooks->runAbortHooks();
    }
  }

  // Ends the profiler's entry, before any caller sees the call's end and stops the profiler.
  void endEntry() {
    if (isProfiled_) {
      std::call_once(ended_, [this] { finish(); });
    }
  }

  Held work_;
  TensorLists outputs_;
  const CallFacts facts_;
  float duration_ms_ = 0; // for completion hooks, if there is no dldist.Work that measures it
  mutable std::atomic<bool> isFailureReported_{false};
  const bool isProfiled_;
  std::once_flag ended_;
  std::mutex futures_; // guards future_ and ending_
  intrusive_ptr<Future> future_;
  intrusive_ptr<Future> ending_;
};

// The work of several calls.
class Together final : public c10d::Work {
 public:
  Together(int rank, std::vector<intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, OpType::COALESCED), works_(std::move(works)) {}

  bool wait(milliseconds timeout) override {
    for (const auto& work : works_) {
      work->wait(timeout);
    }
    return true;
  }

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
  }

  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
  }

  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (std::exception_ptr failure = work->exception()) {
        return failure;
      }
    }
    return nullptr;
  }

  Tensors result() override {
    TensorLists results;
    for (const auto& work : works_) {
      results.push_back(work->result());
    }
    return flat(results);
  }

  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }

  intrusive_ptr<Future> getFuture() override {
    c10::List<intrusive_ptr<Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
    for (const auto& work : works_) {
      futures.push_back(work->getFuture());
    }
    return c10::collectAll(futures)->then(
        [](Future& done) {
          Tensors all;
          for (const c10::IValue& each : done.value().toListRef()) {
            for (const Tensor& tensor : each.toFuture()->value().toTensorVector()) {
              all.push_back(tensor);
            }
          }
          return c10::IValue(all);
        },
        c10::ListType::ofTensors());
  }

 private:
  const std::vector<intrusive_ptr<c10d::Work>> works_;
};

// ---- calls

struct Operation {
  const char* method; // dldist.Group's method
  const char* call;   // c10d::Backend's method
  OpType type;
  const char* title;  // in the profiler, after the backend's name: "gloo:all_reduce"
};

constexpr auto OPERATIONS = std::to_array<Operation>({
    {"all_reduce", "allreduce", OpType::ALLREDUCE, "all_reduce"},
    {"all_reduce_coalesced", "allreduce_coalesced", OpType::ALLREDUCE_COALESCED, "all_reduce"},
    {"broadcast", "broadcast", OpType::BROADCAST, "broadcast"},
    {"reduce", "reduce", OpType::REDUCE, "reduce"},
    {"all_gather", "allgather", OpType::ALLGATHER, "all_gather"},
    {"all_gather_single", "all_gather_single", OpType::_ALLGATHER_BASE, "all_gather"},
    {"all_gather_coalesced", "allgather_coalesced", OpType::ALLGATHER_COALESCED, "all_gather"},
    {"all_gather_single_coalesced", "all_gather_single_coalesced", OpType::COALESCED, "all_gather"},
    {"gather", "gather", OpType::GATHER, "gather"},
    {"gather_single", "gather_single", OpType::GATHER, "gather"},
    {"scatter", "scatter", OpType::SCATTER, "scatter"},
    {"reduce_scatter", "reduce_scatter", OpType::REDUCE_SCATTER, "reduce_scatter"},
    {"reduce_scatter_single", "reduce_scatter_single", OpType::_REDUCE_SCATTER_BASE, "reduce_scatter"},
    {"reduce_scatter_coalesced", "reduce_scatter_single_coalesced", reduceScatterCoalescedType(), "reduce_scatter"},
    {"all_to_all_single", "all_to_all_single", OpType::ALLTOALL_BASE, "all_to_all"},
    {"all_to_all", "alltoall", OpType::ALLTOALL, "all_to_all"},
    {"barrier", "barrier", OpType::BARRIER, "barrier"},
    {"isend", "send", OpType::SEND, "send"},
    {"irecv", "recv", OpType::RECV, "recv"},
    {"irecv", "recv_anysource", OpType::RECVANYSOURCE, "recvAnySource"},
});

// Returns the operation of a method of c10d::Backend.
consteval const Operation& operationOf(std::string_view call) {
  return *std::find_if(OPERATIONS.begin(), OPERATIONS.end(), [&](const Operation& each) { return each.call == call; });
}

// The positional arguments of a group's method. Use with the GIL.
class Arguments {
 public:
  Arguments() = default;
  ~Arguments() {
    for (size_t i = 1; i <= count_; i++) {
      Py_DECREF(slots_[i]);
    }
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void add(py::object object) { slots_[++count_] = object.release().ptr(); }
  template <class Value>
  void add(const Value& value) { // a list for a vector of tensors, None for null
    add(checked(py::cast(value).release().ptr()));
  }
  void add(const c10d::ReduceOp& op) {
    if (op.op_ < names().reductions.size()) {
      slots_[++count_] = Py_NewRef(names().reductions[op.op_]);
    } else {
      add(py::module_::import("dldist.torch._options").attr("reduction_of")(py::cast(op)));
    }
  }
  void add(const std::vector<int64_t>& splits) { add(splits.empty() ? py::none() : py::cast(splits)); }
  template <class First, class Second, class... Rest>
  void add(const First& first, const Second& second, const Rest&... rest) {
    add(first);
    add(second);
    (add(rest), ...);
  }

  // Adds the keyword arguments and calls the method.
  PyObject* call(PyObject* method, bool isAsync, milliseconds timeout) {
    size_t positional = count_;
    PyObject* named = names().async;
    slots_[++count_] = Py_NewRef(isAsync ? Py_True : Py_False);
    if (timeout >= milliseconds(0)) {
      named = names().asyncAndTimeout;
      add(std::chrono::duration<double>(timeout).count());
    }
    return PyObject_Vectorcall(method, &slots_[1], positional | PY_VECTORCALL_ARGUMENTS_OFFSET, named);
  }

  PyObject* call(PyObject* method) {
    return PyObject_Vectorcall(method, &slots_[1], count_ | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  }

 private:
  std::array<PyObject*, 8> slots_; // [0] is reserved for the callee
  size_t count_ = 0;
};

// True if the group accepts the tensor as it is.
bool isPlain(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

// References to the tensors that a call reads or writes. Copied only for a work or a profiler.
class Operands {
 public:
  Operands() = default; // no tensors
  Operands(const Tensor& tensor) : operands_(&tensor) {}
  Operands(const Tensors& tensors) : operands_(&tensors) {}
  Operands(const TensorLists& lists) : operands_(&lists) {}

  bool arePlain() const { return std::visit([](auto operands) { return arePlain(operands); }, operands_); }
  TensorLists lists() const { return std::visit([](auto operands) { return lists(operands); }, operands_); }

 private:
  static bool arePlain(std::monostate) { return true; }
  static bool arePlain(const Tensor* tensor) { return isPlain(*tensor); }
  static bool arePlain(const Tensors* tensors) { return std::all_of(tensors->begin(), tensors->end(), isPlain); }
  static bool arePlain(const TensorLists* lists) {
    return std::all_of(lists->begin(), lists->end(), [](const Tensors& tensors) { return arePlain(&tensors); });
  }

  static TensorLists lists(std::monostate) { return {}; }
  static TensorLists lists(const Tensor* tensor) { return {{*tensor}}; }
  static TensorLists lists(const Tensors* tensors) { return {*tensors}; }
  static TensorLists lists(const TensorLists* lists) { return *lists; }

  std::variant<std::monostate, const Tensor*, const Tensors*, const TensorLists*> operands_;
};

// Keeps a text forever: a profiler may read a title after its group's end. Call with the GIL.
const char* kept(std::string text) {
  static auto& texts = *new std::set<std::string>();
  return texts.insert(std::move(text)).first->c_str();
}

// If the backend replaces Gloo, c10d::Logger casts it to c10d::ProcessGroupGloo unchecked, and
// reads the number of threads. So these options and Backend's first members have that class's
// layout.
struct OwnOptions final : c10d::Backend::Options {
  OwnOptions(const std::string& backend, milliseconds timeout) : c10d::Backend::Options(backend, timeout) {}

  std::vector<std::shared_ptr<void>> devices;
  int threads{2}; // Gloo's default; here, the thread that waits does the work

  intrusive_ptr<c10d::Backend::Options> clone() const { return c10::make_intrusive<OwnOptions>(*this); }
};

class Backend : public c10d::Backend {
 public:
  // Call with the GIL.
  Backend(const py::object& runner, milliseconds timeout)
      : c10d::Backend(
            runner.attr("cpu").attr("rank")().cast<int>(), runner.attr("cpu").attr("size")().cast<int>()),
        options_(c10::make_intrusive<OwnOptions>(runner.attr("backend_name").cast<std::string>(), timeout)),
        runner_(py::object(runner).release().ptr()) {
    options_->global_ranks_in_group = runner.attr("ranks").cast<std::vector<uint64_t>>();
    options_->group_name = runner.attr("name").cast<std::string>();
    init();
    for (const Operation& operation : OPERATIONS) {
      titles_.push_back(kept(options_->backend + ":" + operation.title));
    }
    adoptGroup();
  }

  const std::string getBackendName() const override { return options_->backend; }

  // Returns a copy: ProcessGroup::splitGroup() writes the new group's name and timeout into it.
  intrusive_ptr<c10d::Backend::Options> getBackendOptions() override {
    return c10::make_intrusive<OwnOptions>(*options_);
  }

  bool supportsSplitting() const override { return true; }

  // Returns false before the first reconfigure() of a group without members.
  bool isInitialized() { return static_cast<bool>(methods_); }

  // ---- collectives

  intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return run(
        operationOf("allreduce"), opts, tensors.size() == 1, tensors, tensors,
        [&](Arguments& arguments) { arguments.add(tensors[0], opts.reduceOp); }, tensors);
  }

  intrusive_ptr<c10d::Work> allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return allreduce(tensors, opts);
  }

  intrusive_ptr<c10d::Work> allreduce_coalesced(
      Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return run(
        operationOf("allreduce_coalesced"), opts, true, tensors, tensors,
        [&](Arguments& arguments) { arguments.add(tensors, opts.reduceOp); }, tensors);
  }

  intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return run(
        operationOf("broadcast"), opts, tensors.size() == 1 && opts.rootTensor == 0, tensors, tensors,
        [&](Arguments& arguments) { arguments.add(tensors[0], opts.rootRank); }, tensors);
  }

  intrusive_ptr<c10d::Work> reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return run(
        operationOf("reduce"), opts, tensors.size() == 1 && opts.rootTensor == 0, tensors, tensors,
        [&](Arguments& arguments) { arguments.add(tensors[0], opts.rootRank, opts.reduceOp); }, tensors);
  }

  intrusive_ptr<c10d::Work> allgather(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    bool isOne = outputs.size() == 1 && inputs.size() == 1;
    return run(
        operationOf("allgather"), opts, isOne, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs[0], inputs[0]); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> _allgather_base(
      Tensor& output, Tensor& input, const c10d::AllgatherOptions& opts) override {
    return run(
        operationOf("all_gather_single"), opts, true, input, output,
        [&](Arguments& arguments) { arguments.add(output, input); }, output, input);
  }

  intrusive_ptr<c10d::Work> allgather_coalesced(
      TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return run(
        operationOf("allgather_coalesced"), opts, true, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs, inputs); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return run(
        operationOf("all_gather_single_coalesced"), opts, true, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs, inputs); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    bool isRoot = opts.rootRank == getRank();
    bool isOne = inputs.size() == 1 && outputs.size() == (isRoot ? 1 : 0);
    return run(
        operationOf("gather"), opts, isOne, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(inputs[0], isRoot ? &outputs[0] : nullptr, opts.rootRank); },
        outputs, inputs);
  }

  intrusive_ptr<c10d::Work> gather_single(Tensor& output, Tensor& input, const c10d::GatherOptions& opts) {
    const Tensor* result = opts.rootRank == getRank() ? &output : nullptr; // on other ranks, `output` is empty
    return run(
        operationOf("gather_single"), opts, true, input, result != nullptr ? Operands(output) : Operands(),
        [&](Arguments& arguments) { arguments.add(input, result, opts.rootRank); }, result, input);
  }

  intrusive_ptr<c10d::Work> scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override {
    bool isRoot = opts.rootRank == getRank();
    bool isOne = outputs.size() == 1 && inputs.size() == (isRoot ? 1 : 0);
    return run(
        operationOf("scatter"), opts, isOne, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs[0], isRoot ? &inputs[0] : nullptr, opts.rootRank); },
        outputs, inputs);
  }

  intrusive_ptr<c10d::Work> reduce_scatter(
      Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override {
    bool isOne = outputs.size() == 1 && inputs.size() == 1;
    return run(
        operationOf("reduce_scatter"), opts, isOne, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs[0], inputs[0], opts.reduceOp); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> _reduce_scatter_base(
      Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return run(
        operationOf("reduce_scatter_single"), opts, true, input, output,
        [&](Arguments& arguments) { arguments.add(output, input, opts.reduceOp); }, output, input);
  }

  intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) override {
    return run(
        operationOf("reduce_scatter_single_coalesced"), opts, true, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs, inputs, opts.reduceOp); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> alltoall_base(
      Tensor& output,
      Tensor& input,
      std::vector<int64_t>& outputSplits,
      std::vector<int64_t>& inputSplits,
      const c10d::AllToAllOptions& opts) override {
    return run(
        operationOf("all_to_all_single"), opts, true, input, output,
        [&](Arguments& arguments) { arguments.add(output, input, outputSplits, inputSplits); },
        output, input, outputSplits, inputSplits);
  }

  intrusive_ptr<c10d::Work> alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return run(
        operationOf("alltoall"), opts, true, inputs, outputs,
        [&](Arguments& arguments) { arguments.add(outputs, inputs); }, outputs, inputs);
  }

  intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& opts) override {
    bool isHere = !opts.device || opts.device->is_cpu();
    return run(operationOf("barrier"), opts, isHere, {}, {}, [](Arguments&) {});
  }

  void monitoredBarrier(const c10d::BarrierOptions& opts, bool waitAllRanks) override {
    Gil gil;
    callRunner("monitored_barrier", opts.timeout, waitAllRanks);
  }

  // ---- messages

  intrusive_ptr<c10d::Work> send(Tensors& tensors, int rank, int tag) override {
    return runMessage(operationOf("send"), tensors, {}, rank, tag);
  }

  intrusive_ptr<c10d::Work> recv(Tensors& tensors, int rank, int tag) override {
    return runMessage(operationOf("recv"), tensors, tensors, rank, tag);
  }

  intrusive_ptr<c10d::Work> recvAnysource(Tensors& tensors, int tag) override {
    return runMessage(operationOf("recv_anysource"), tensors, tensors, std::nullopt, tag);
  }

  // ---- coalescing

  void startCoalescing() override {
    std::lock_guard<std::mutex> lock(coalescing_);
    TORCH_CHECK(!coalesced_, "startCoalescing(): earlier calls are still being coalesced");
    coalesced_.emplace();
  }

  intrusive_ptr<c10d::Work> endCoalescing() override {
    std::lock_guard<std::mutex> lock(coalescing_);
    TORCH_CHECK(coalesced_, "endCoalescing() without startCoalescing()");
    auto together = c10::make_intrusive<Together>(getRank(), std::move(*coalesced_));
    coalesced_.reset();
    return together;
  }

  // ---- time, order, errors, hooks

  void setTimeout(milliseconds timeout) override {
    options_->timeout = timeout;
    Gil gil;
    callRunner("set_timeout", timeout);
  }

  void setSequenceNumberForGroup() override {} // all ranks count from the start

  uint64_t getSequenceNumberForGroup() override {
    Gil gil;
    return callRunner("sequence").cast<uint64_t>();
  }

  c10d::ErrorType getError() override {
    Gil gil;
    return static_cast<c10d::ErrorType>(callRunner("error_type").cast<int>());
  }

  void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override {
    TORCH_CHECK(onCompletionHook_ == nullptr, "registerOnCompletionHook(): this group has a hook already");
    onCompletionHook_ = std::move(hook);
  }

  // Waits until the completion hook has run for all works.
  void waitForPendingWorks() override {
    std::unique_lock<std::mutex> lock(pending_->mutex);
    pending_->isNone.wait(lock, [&] { return pending_->count == 0; });
  }

  void enableCollectivesTiming() override {} // works always measure their time

  bool supportsAbortHooks() const { return true; }
  void registerAbortHook(int64_t id, std::function<void()> hook) { hooks_->abort.add(id, std::move(hook)); }
  void unregisterAbortHook(int64_t id) { hooks_->abort.remove(id); }

  bool supportsCompletionHooks() const { return true; }
  void registerCompletionHook(int64_t id, std::function<void(const c10d::CompletionHookArgs&)> hook) {
    hooks_->completion.add(id, std::move(hook));
  }
  void unregisterCompletionHook(int64_t id) { hooks_->completion.remove(id); }

  // ---- shutdown

  void shutdown() override {
    Gil gil;
    callRunner("shutdown");
  }

  void abort() override {
    hooks_->runAbortHooks();
    Gil gil;
    callRunner("abort");
  }

  // ---- other members

  intrusive_ptr<c10d::Backend> split(
      const intrusive_ptr<c10d::Store>& store,
      const std::vector<int>& ranks,
      const intrusive_ptr<c10d::Backend::Options>& opts) override {
    if (std::find(ranks.begin(), ranks.end(), getRank()) == ranks.end()) {
      return nullptr;
    }
    Gil gil;
    py::object part = callRunner("split", store, ranks, opts->group_name, opts->timeout);
    return c10::make_intrusive<Backend>(part, opts->timeout);
  }

  intrusive_ptr<c10d::Backend> merge(
      const intrusive_ptr<c10d::Store>& store,
      const intrusive_ptr<c10d::Backend::Options>& opts,
      const int& rank,
      const int& size) override {
    std::vector<int> ranks(static_cast<size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    Gil gil;
    py::object all = callRunner("rendezvous", store, opts->group_name, ranks, rank, opts->timeout, "", options_->backend);
    return c10::make_intrusive<Backend>(all, opts->timeout);
  }

#ifdef C10D_BACKEND_HAS_RECONFIGURE // since PyTorch 2.14
  bool supportsReconfigure() const override { return true; }

  c10d::ReconfigureHandle get_reconfigure_handle() const override {
    Gil gil;
    return callRunner("get_reconfigure_handle").cast<std::string>();
  }

  intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& opts) override {
    Gil gil;
    methods_ = Held(); // the group ends, even if reconfigure fails
    callRunner("reconfigure", opts.uuid, opts.handles, opts.timeout);
    rank_ = runner().attr("cpu").attr("rank")().cast<int>();
    size_ = runner().attr("cpu").attr("size")().cast<int>();
    adoptGroup();
    options_->global_ranks_in_group = runner().attr("ranks").cast<std::vector<uint64_t>>();
    auto work = c10::make_intrusive<Work>(
        getRank(), OpType::UNKNOWN, nullptr, std::nullopt, facts(opts.timeout.value_or(options_->timeout)));
    work->begin(py::none(), {});
    return work;
  }
#endif

  // ---- names

  void setGroupUid(const std::string& uid) {
    c10d::Backend::setGroupUid(uid);
    describe();
  }

  intrusive_ptr<c10d::Backend::Options> options() const { return options_; }

  py::object runner() const { return py::reinterpret_borrow<py::object>(runner_.get()); }

 private:
  // Stores the methods of the runner's group, if any. Call with the GIL.
  void adoptGroup() {
    py::object group = runner().attr("group");
    if (group.is_none()) {
      return;
    }
    py::tuple methods(OPERATIONS.size());
    for (size_t i = 0; i < OPERATIONS.size(); i++) {
      methods[i] = group.attr(OPERATIONS[i].method);
    }
    methods_ = Held(methods.release().ptr());
  }

  CallFacts facts(milliseconds timeout) {
    return {++works_, timeout >= milliseconds(0) ? timeout : options_->timeout, hooks_};
  }

  template <class... Args>
  py::object callRunner(const char* method, const Args&... args) const {
    return callRunnerWith(method, py::make_tuple(args...));
  }

  py::object callRunnerWith(const char* method, const py::tuple& arguments) const {
    py::object bound = checked(PyObject_GetAttrString(runner_.get(), method));
    return checked(PyObject_CallObject(bound.ptr(), arguments.ptr()));
  }

  // Runs a collective by the group's method, with arguments from `fill`, if the group supports this
  // form (`fits`) and the tensors are plain; else by the runner, with c10d's arguments: `lower`, then
  // `opts`.
  template <class Opts, class Fill, class... Lower>
  intrusive_ptr<c10d::Work> run(
      const Operation& operation,
      const Opts& opts,
      bool fits,
      const Operands& inputs,
      const Operands& outputs,
      Fill&& fill,
      const Lower&... lower) {
    auto lowered = [&] { return py::make_tuple(lower..., opts); };
    return start(operation, inputs, outputs, fits, opts.asyncOp, opts.timeout, lowered, [&](PyObject* method) {
      Arguments arguments;
      fill(arguments);
      return arguments.call(method, opts.asyncOp, opts.timeout);
    });
  }

  // Runs a message; `rank` is the other rank, or nothing to receive from any rank.
  intrusive_ptr<c10d::Work> runMessage(
      const Operation& operation,
      const Tensors& tensors,
      const Operands& outputs,
      std::optional<int64_t> rank,
      int64_t tag) {
    auto lowered = [&] { return rank ? py::tuple(py::make_tuple(tensors, *rank, tag)) : py::make_tuple(tensors, tag); };
    bool fits = tensors.size() == 1;
    return start(operation, tensors, outputs, fits, true, options_->timeout, lowered, [&](PyObject* method) {
      Arguments arguments;
      arguments.add(tensors[0], rank ? &*rank : nullptr, tag);
      return arguments.call(method);
    });
  }

  template <class Lower, class Call>
  intrusive_ptr<c10d::Work> start(
      const Operation& operation,
      const Operands& inputs,
      const Operands& outputs,
      bool fits,
      bool isAsync,
      milliseconds timeout,
      Lower&& lower,
      Call&& call) {
    intrusive_ptr<Work> work;
    if (at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) { // the entry begins now
      work = c10::make_intrusive<Work>(
          getRank(), operation.type, titles_[&operation - OPERATIONS.data()], flat(inputs.lists()), facts(timeout));
    }
    Gil gil;
    if (!isDescribed_.exchange(true)) {
      describe(); // the description is set after the name
    }
    bool isHooked = onCompletionHook_ != nullptr || !hooks_->completion.isEmpty();
    auto began = isHooked ? Clock::now() : Clock::time_point();
    bool isPlain = fits && inputs.arePlain() && outputs.arePlain();
    py::object started;
    try {
      started = perform(operation, isPlain, lower, call);
    } catch (const py::error_already_set& error) {
      if (error.matches(names().failures) && !error.matches(names().refusals)) {
        hooks_->runAbortHooks();
      }
      throw;
    }
    bool isWorkWanted = isAsync || work || isHooked || isCoalescing() ||
        c10d::allow_inflight_collective_as_graph_input(); // PyTorch then registers the work
    if (started.is_none() && !isWorkWanted) {
      return nullptr; // like PyTorch's backends: nothing to wait for
    }
    if (!work) {
      work = c10::make_intrusive<Work>(getRank(), operation.type, nullptr, std::nullopt, facts(timeout));
    }
    work->begin(std::move(started), outputs.lists());
    if (onCompletionHook_ != nullptr) {
      tellWhenDone(work, operation.type, began);
    }
    if (isHooked) {
      work->reportCompletion(Milliseconds(Clock::now() - began).count());
    }
    std::lock_guard<std::mutex> lock(coalescing_);
    if (coalesced_) {
      coalesced_->push_back(work);
    }
    return work;
  }

  // Starts an operation by the group's method if it accepts the tensors, else by the runner.
  template <class Lower, class Call>
  py::object perform(const Operation& operation, bool isPlain, Lower&& lower, Call&& call) {
    if (isPlain && methods_) {
      size_t index = &operation - OPERATIONS.data();
      auto method = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(methods_.get(), index));
      if (py::object started = resultOf(call(method.ptr()))) {
        return started;
      }
    }
    return callRunnerWith("perform", py::make_tuple(operation.call) + lower());
  }

  bool isCoalescing() {
    std::lock_guard<std::mutex> lock(coalescing_);
    return coalesced_.has_value();
  }

  // Returns a call's result, or nothing if the group refused the arguments: the runner may run the
  // call in another way, and otherwise raises the refusal again.
  static py::object resultOf(PyObject* result) {
    if (result == nullptr && PyErr_ExceptionMatches(names().refusals)) {
      PyErr_Clear();
      return py::object();
    }
    return checked(result);
  }

  void tellWhenDone(const intrusive_ptr<Work>& work, OpType type, Clock::time_point began) {
    auto hook = onCompletionHook_;
    uint64_t sequence = getSequenceNumberForGroup();
    // Released with the watcher, even if the watcher is never called.
    std::shared_ptr<void> entry = Pending::enter(pending_);
    work->watch([hook, type, sequence, began, entry = std::move(entry)] {
      auto ended = Clock::now();
      try {
        hook(std::make_shared<c10d::WorkInfo>(type, sequence, began, ended, ended - began));
      } catch (const std::exception& error) { // no caller is left to catch it
        LOG(ERROR) << "a hook on completion failed: " << error.what();
      }
    });
  }

  // Counts the works whose completion hook has not run. May outlive the backend.
  struct Pending {
    std::mutex mutex;
    std::condition_variable isNone;
    int count = 0;

    // Counts a work until the returned pointer is released.
    static std::shared_ptr<void> enter(const std::shared_ptr<Pending>& pending) {
      pending->add(1);
      return {nullptr, [pending](void*) { pending->add(-1); }};
    }

    void add(int more) {
      std::lock_guard<std::mutex> lock(mutex);
      count += more;
      isNone.notify_all();
    }
  };

  // Sets the name and description of the group for reports and dumps.
  void describe() {
    if (!pg_uid_.empty()) {
      Gil gil;
      callRunner(
          "describe", pg_uid_, pg_desc_.empty() ? "undefined" : pg_desc_, options_->global_ranks_in_group);
    }
  }

  const std::shared_ptr<void> place_; // empty; takes the place of ProcessGroupGloo::store_ (see OwnOptions)
  const intrusive_ptr<OwnOptions> options_;
  const Held runner_;
  Held methods_;                     // a tuple: the group's methods for OPERATIONS; empty before reconfigure()
  std::vector<const char*> titles_;  // for OPERATIONS
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  std::atomic<uint64_t> works_{0};
  const std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();
  std::atomic<bool> isDescribed_{false};
  std::mutex coalescing_;     // guards coalesced_; Python must not run under it
  std::optional<std::vector<intrusive_ptr<c10d::Work>>> coalesced_;
};

// ---- lazily conjugated or negated tensors

// True if dldist's backend serves the group's CPU tensors.
bool isOurs(c10d::ProcessGroup& group) {
  const std::vector<c10::Device> devices = group.getDeviceTypes();
  bool hasCpu = std::any_of(devices.begin(), devices.end(), [](c10::Device device) { return device.is_cpu(); });
  return hasCpu && dynamic_cast<Backend*>(group.getBackend(c10::DeviceType::CPU).get()) != nullptr;
}

void resolve(c10::IValue& value) {
  if (value.isTensor()) {
    value = value.toTensor().resolve_conj().resolve_neg();
  } else if (value.isTensorList()) {
    Tensors tensors = value.toTensorVector();
    for (Tensor& tensor : tensors) {
      tensor = tensor.resolve_conj().resolve_neg();
    }
    value = std::move(tensors);
  }
}

// PyTorch passes copies of lazy tensors to operations, and loses what a group's operation writes to
// them. dldist's groups get the tensors themselves instead (Runner.perform copies the results
// back).
template <c10::DispatchKey KEY>
void passLazy(const c10::OperatorHandle& operation, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  auto arguments = torch::jit::last(*stack, operation.schema().arguments().size());
  const auto groupType = c10::getCustomClassType<intrusive_ptr<c10d::ProcessGroup>>();
  bool isPassed = std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& value) {
    return value.isCustomClass() && *value.type() == *groupType && isOurs(*value.toCustomClass<c10d::ProcessGroup>());
  });
  if (!isPassed) {
    for (size_t i = stack->size() - arguments.size(); i < stack->size(); i++) {
      resolve((*stack)[i]);
    }
  }
  operation.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, KEY), stack);
}

template <c10::DispatchKey KEY>
void passLazyTensors(torch::Library& library) {
  for (const char* name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
        "allgather_coalesced_", "allgather_into_tensor_coalesced_", "gather_", "scatter_", "reduce_scatter_",
        "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_", "send", "recv_",
        "recv_any_source_", "gather_into_tensor_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&passLazy<KEY>>());
  }
}

TORCH_LIBRARY_IMPL(c10d, Conjugate, library) {
  passLazyTensors<c10::DispatchKey::Conjugate>(library);
}

TORCH_LIBRARY_IMPL(c10d, Negative, library) {
  passLazyTensors<c10::DispatchKey::Negative>(library);
}

} // namespace

PYBIND11_MODULE(DLDIST_MODULE, module) {
  py::module_::import("torch");
  names();
  py::register_exception_translator(raiseFailures);
  py::class_<Backend, c10d::Backend, intrusive_ptr<Backend>>(module, "Backend")
      .def(
          py::init<const py::object&, milliseconds>(), py::arg("runner"), py::arg("timeout"))
      .def("_set_default_timeout", &Backend::setTimeout, py::arg("timeout"))
      .def("get_error", &Backend::getError)
      .def_property_readonly("options", &Backend::options)
      .def_property_readonly("backend_name", [](const Backend& self) { return self.getBackendName(); })
      .def_property_readonly("runner", &Backend::runner);
}
