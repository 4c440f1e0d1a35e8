// SPDX-License-Identifier: Apache-2.0
// Reductions by type: every predefined datatype with every operation that MPI defines on it, and operations of the
// user's own, on 1, 1000 and 300000 elements.
//
// Operands lie as a program may place them: at any multiple of their type's own alignment, sender and receiver not
// alike (an int at an odd multiple of 4, a char at an odd address). Operands are chosen so that results are exact and
// do not depend on the order in which ranks are combined; they must be, bit by bit, those of the same call on host
// buffers.
//
// Where ranks outnumber cores an MPI spins through whole time slices, so that a blocking reduction of 300000 elements
// takes as long as hundreds of others. At that size the shapes that programs use most are called blocking on one type
// only; --long adds every type, shape and form.
#include <array>
#include <complex>

#include "support.h"

using namespace ranks;

namespace {

std::size_t to_size(int value) {
    return static_cast<std::size_t>(value);
}

// ---- operands -------------------------------------------------------------------------------------------------------

/// What operands must be like for an operation to be exact and independent of the order, on up to 8 ranks.
enum class Content {
    any,      ///< maxima, minima, bits
    truth,    ///< logical operations: zero in a third of the elements, anything else in the others
    summand,  ///< sums stay in the range of the smallest type
    factor,   ///< products too: one rank's element differs from 1 and -1
};

template <class T>
struct IsComplex : std::false_type {};
template <class T>
struct IsComplex<std::complex<T>> : std::true_type {};

/// As MPI_MINLOC and MPI_MAXLOC take it.
template <class T>
struct Indexed {
    using Value = T;
    T value;
    int index;
    static constexpr bool padding(std::size_t byte) {
        if (byte < sizeof(T)) {
            return is_padding<T>(byte);
        }
        return byte < offsetof(Indexed, index) || byte >= offsetof(Indexed, index) + sizeof(int);
    }
};
template <class T>
struct IsIndexed : std::false_type {};
template <class T>
struct IsIndexed<Indexed<T>> : std::true_type {};

/// The element that `bits` stand for. `own_turn`: this rank's factor is the one that counts.
template <class T>
T make_value(Content content, std::uint64_t bits, bool own_turn) {
    if constexpr (IsIndexed<T>::value) {
        // Few values, so that many are equal and the index decides.
        const int value = static_cast<int>(bits % 5);
        const int offset = std::is_signed_v<typename T::Value> ? 2 : 0;
        return T{static_cast<typename T::Value>(value - offset), static_cast<int>((bits >> 32) % 100)};
    } else if constexpr (IsComplex<T>::value) {
        using Part = typename T::value_type;
        if (content == Content::summand) {
            return T(static_cast<Part>(static_cast<int>(bits % 5) - 2),
                     static_cast<Part>(static_cast<int>((bits >> 8) % 5) - 2));
        }
        // Gaussian primes, of which none is the other's conjugate: no product of them has a part that is zero, whose
        // sign would depend on the order. (4 + i) to the 8th power is below 2^17: exact in every type.
        constexpr std::array<std::pair<int, int>, 3> kPrimes = {{{2, 1}, {3, 2}, {4, 1}}};
        const auto [real, imaginary] = kPrimes[bits % 3];
        const int sign = bits >> 60 == 0 ? -1 : 1;
        return T(static_cast<Part>(sign * real), static_cast<Part>(sign * imaginary));
    } else if constexpr (std::is_same_v<T, bool>) {
        return bits % 3 != 0;
    } else {
        const int sign = std::is_signed_v<T> && (bits >> 60) % 2 == 1 ? -1 : 1;
        switch (content) {
            case Content::any:
                if constexpr (std::is_floating_point_v<T>) {
                    return static_cast<T>(static_cast<std::int64_t>(bits)) / 1024;
                } else {
                    return static_cast<T>(bits);
                }
            case Content::truth:
                return bits % 3 == 0 ? T{0} : static_cast<T>(static_cast<std::uint64_t>(1) | (bits >> 8 & 0x7f));
            case Content::summand:
                if constexpr (std::is_floating_point_v<T>) {
                    return static_cast<T>(sign * static_cast<int>(bits % 1000)) / 8;
                }
                return static_cast<T>(sign * static_cast<int>(bits % 12));
            case Content::factor:
                if constexpr (std::is_floating_point_v<T>) {
                    return static_cast<T>(sign) * (own_turn ? static_cast<T>(bits % 100) / 4 : T{1});
                }
                return static_cast<T>(sign * (own_turn ? static_cast<int>(bits % 100) : 1));
        }
        return T{};
    }
}

/// Where the elements of one operand come from.
struct Source {
    std::uint64_t seed;
    int rank, size;
};

using Fill = void (*)(std::byte* image, std::size_t count, Content content, const Source& source);

template <class T>
void fill(std::byte* image, std::size_t count, Content content, const Source& source) {
    const std::uint64_t stream = combine(source.seed, to_size(source.rank));
    for (std::size_t at = 0; at < count; ++at) {
        const T value =
            make_value<T>(content, mix_bits(stream + at), at % to_size(source.size) == to_size(source.rank));
        std::memcpy(image + at * sizeof(T), &value, sizeof(T));
    }
}

template <class T>
bool pads(std::size_t byte) {
    if constexpr (IsComplex<T>::value) {
        return is_padding<typename T::value_type>(byte % sizeof(typename T::value_type));
    } else {
        return is_padding<T>(byte);
    }
}
/// The bytes of an element that carry no value.
template <class T>
std::vector<std::size_t> padding_of() {
    std::vector<std::size_t> bytes;
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
        if (pads<T>(byte)) {
            bytes.push_back(byte);
        }
    }
    return bytes;
}

// ---- what is reduced ------------------------------------------------------------------------------------------------

struct Operation {
    std::string name;
    MPI_Op op;
    Content content;
};

/// A datatype with its operations.
struct Element {
    std::string name;
    MPI_Datatype type;
    std::size_t bytes, alignment;
    Fill fill;
    std::vector<std::size_t> padding;
    std::vector<Operation> operations;
};

template <class T>
Element element(const std::string& name, MPI_Datatype type, const std::vector<std::vector<Operation>>& groups) {
    Element result{name, type, sizeof(T), alignof(T), &fill<T>, padding_of<T>(), {}};
    for (const std::vector<Operation>& group : groups) {
        result.operations.insert(result.operations.end(), group.begin(), group.end());
    }
    return result;
}

// The groups of operations and the types that each is defined on are those of the MPI standard, section "Predefined
// Reduction Operations".
std::vector<Operation> order() {
    return {{"max", MPI_MAX, Content::any}, {"min", MPI_MIN, Content::any}};
}
std::vector<Operation> arithmetic() {
    return {{"sum", MPI_SUM, Content::summand}, {"prod", MPI_PROD, Content::factor}};
}
std::vector<Operation> logical() {
    return {{"land", MPI_LAND, Content::truth}, {"lor", MPI_LOR, Content::truth}, {"lxor", MPI_LXOR, Content::truth}};
}
std::vector<Operation> bitwise() {
    return {{"band", MPI_BAND, Content::any}, {"bor", MPI_BOR, Content::any}, {"bxor", MPI_BXOR, Content::any}};
}
std::vector<Operation> located() {
    return {{"minloc", MPI_MINLOC, Content::any}, {"maxloc", MPI_MAXLOC, Content::any}};
}

template <class T>
Element integer(const std::string& name, MPI_Datatype type) {
    return element<T>(name, type, {order(), arithmetic(), logical(), bitwise()});
}
template <class T>
Element multi_language(const std::string& name, MPI_Datatype type) {
    return element<T>(name, type, {order(), arithmetic(), bitwise()});
}
template <class T>
Element floating(const std::string& name, MPI_Datatype type) {
    return element<T>(name, type, {order(), arithmetic()});
}
template <class T>
Element complex_number(const std::string& name, MPI_Datatype type) {
    return element<std::complex<T>>(name, type, {arithmetic()});
}

Element offset() {
    Element result = multi_language<MPI_Offset>("offset", MPI_OFFSET);
#ifdef OPEN_MPI  // Open MPI 5.0.11 compares them as unsigned numbers
    std::erase_if(result.operations, [](const Operation& one) { return one.op == MPI_MIN || one.op == MPI_MAX; });
#endif
    return result;
}

struct Family {
    std::string name;
    std::vector<Element> elements;
    bool large;  ///< also on 300000 elements: one name of each type is enough there
};

std::vector<Family> families() {
    std::vector<Family> list;
    list.push_back({"signed_integers",
                    {integer<std::int8_t>("int8", MPI_INT8_T), integer<std::int16_t>("int16", MPI_INT16_T),
                     integer<std::int32_t>("int32", MPI_INT32_T), integer<std::int64_t>("int64", MPI_INT64_T)},
                    true});
    list.push_back({"unsigned_integers",
                    {integer<std::uint8_t>("uint8", MPI_UINT8_T), integer<std::uint16_t>("uint16", MPI_UINT16_T),
                     integer<std::uint32_t>("uint32", MPI_UINT32_T), integer<std::uint64_t>("uint64", MPI_UINT64_T)},
                    true});
    list.push_back(
        {"other_names_of_integers",
         {integer<char>("char", MPI_CHAR), integer<signed char>("signed_char", MPI_SIGNED_CHAR),
          integer<unsigned char>("unsigned_char", MPI_UNSIGNED_CHAR), integer<short>("short", MPI_SHORT),
          integer<unsigned short>("unsigned_short", MPI_UNSIGNED_SHORT), integer<int>("int", MPI_INT),
          integer<unsigned>("unsigned", MPI_UNSIGNED), integer<long>("long", MPI_LONG),
          integer<unsigned long>("unsigned_long", MPI_UNSIGNED_LONG), integer<long long>("long_long", MPI_LONG_LONG),
          integer<unsigned long long>("unsigned_long_long", MPI_UNSIGNED_LONG_LONG),
          multi_language<MPI_Aint>("aint", MPI_AINT), offset(), multi_language<MPI_Count>("count", MPI_COUNT)},
         false});
    list.push_back({"floating_point",
                    {floating<float>("float", MPI_FLOAT), floating<double>("double", MPI_DOUBLE),
                     floating<long double>("long_double", MPI_LONG_DOUBLE)},
                    true});
    list.push_back({"complex",
                    {complex_number<float>("float_complex", MPI_C_FLOAT_COMPLEX),
                     complex_number<double>("double_complex", MPI_C_DOUBLE_COMPLEX),
                     complex_number<long double>("long_double_complex", MPI_C_LONG_DOUBLE_COMPLEX)},
                    true});
    list.push_back(
        {"truth_and_bytes",
         {element<bool>("c_bool", MPI_C_BOOL, {logical()}), element<unsigned char>("byte", MPI_BYTE, {bitwise()})},
         true});
    list.push_back({"located",
                    {element<Indexed<float>>("float_int", MPI_FLOAT_INT, {located()}),
                     element<Indexed<double>>("double_int", MPI_DOUBLE_INT, {located()}),
                     element<Indexed<long>>("long_int", MPI_LONG_INT, {located()}),
                     element<Indexed<int>>("2int", MPI_2INT, {located()}),
                     element<Indexed<short>>("short_int", MPI_SHORT_INT, {located()}),
                     element<Indexed<long double>>("long_double_int", MPI_LONG_DOUBLE_INT, {located()})},
                    true});
    return list;
}

/// A type that the MPI has, of the size expected. Those of Fortran and C++ are missing from MPIs built without them.
bool exists(const Element& element) {
    int bytes = 0;
    return element.type != MPI_DATATYPE_NULL && MPI_Type_size(element.type, &bytes) == MPI_SUCCESS &&
           to_size(bytes) == element.bytes;
}

Family of_other_languages() {
    Family family{"other_languages", {}, false};
    const std::vector<Element> elements = {
        element<bool>("cxx_bool", MPI_CXX_BOOL, {logical()}),
        complex_number<float>("cxx_float_complex", MPI_CXX_FLOAT_COMPLEX),
        complex_number<double>("cxx_double_complex", MPI_CXX_DOUBLE_COMPLEX),
        element<std::int32_t>("integer", MPI_INTEGER, {order(), arithmetic(), bitwise()}),
        floating<float>("real", MPI_REAL),
        floating<double>("double_precision", MPI_DOUBLE_PRECISION),
        complex_number<float>("complex", MPI_COMPLEX),
        element<Indexed<std::int32_t>>("2integer", MPI_2INTEGER, {located()}),
    };
    for (const Element& one : elements) {
        if (exists(one)) {
            family.elements.push_back(one);
        }
    }
    return family;
}

// ---- the user's own operations --------------------------------------------------------------------------------------

/// Associative, not commutative: the composition of x -> a x + b, modulo 2^32.
struct Affine {
    std::uint32_t a, b;
};
void compose(void* in, void* inout, int* length, MPI_Datatype*) {
    const auto* left = static_cast<const Affine*>(in);
    auto* right = static_cast<Affine*>(inout);
    for (int at = 0; at < *length; ++at) {
        right[at] = Affine{left[at].a * right[at].a, left[at].a * right[at].b + left[at].b};
    }
}
/// Commutative, on a type of two bytes.
void larger_magnitude(void* in, void* inout, int* length, MPI_Datatype*) {
    const auto* left = static_cast<const short*>(in);
    auto* right = static_cast<short*>(inout);
    for (int at = 0; at < *length; ++at) {
        const int one = std::abs(static_cast<int>(left[at])), other = std::abs(static_cast<int>(right[at]));
        right[at] = static_cast<short>(std::min(std::max(one, other), 32767));
    }
}

/// They live while the program's cases run.
class UserOperations {
  public:
    UserOperations() {
        MPI_Op_create(compose, 0, &_ordered);
        MPI_Op_create(larger_magnitude, 1, &_commutative);
        MPI_Type_contiguous(2, MPI_UINT32_T, &_affine);
        MPI_Type_commit(&_affine);
    }
    ~UserOperations() {
        MPI_Op_free(&_ordered);
        MPI_Op_free(&_commutative);
        MPI_Type_free(&_affine);
    }
    UserOperations(const UserOperations&) = delete;
    UserOperations& operator=(const UserOperations&) = delete;

    [[nodiscard]] Family family() const {
        Element affine = element<std::uint32_t>("affine", _affine, {{{"compose", _ordered, Content::any}}});
        affine.bytes = sizeof(Affine);
        affine.fill = [](std::byte* image, std::size_t count, Content content, const Source& source) {
            fill<std::uint32_t>(image, 2 * count, content, source);
        };
        return {"user_defined",
                {affine, element<short>("short", MPI_SHORT, {{{"larger_magnitude", _commutative, Content::any}}})},
                true};
    }

  private:
    MPI_Op _ordered = MPI_OP_NULL, _commutative = MPI_OP_NULL;
    MPI_Datatype _affine = MPI_DATATYPE_NULL;
};

// ---- calls ----------------------------------------------------------------------------------------------------------

/// Those that are most used come first.
enum class Shape {
    allreduce,
    allreduce_in_place,
    reduce_in_place,
    reduce,
    scan,
    reduce_scatter_block,
    exscan,
    reduce_scatter,
};
constexpr std::array<Shape, 8> kShapes = {
    Shape::allreduce, Shape::allreduce_in_place,   Shape::reduce_in_place, Shape::reduce,
    Shape::scan,      Shape::reduce_scatter_block, Shape::exscan,          Shape::reduce_scatter,
};
constexpr std::array<const char*, 8> kShapeNames = {
    "allreduce", "allreduce in place",   "reduce in place", "reduce",
    "scan",      "reduce_scatter_block", "exscan",          "reduce_scatter",
};

enum class Form { blocking, nonblocking, persistent };
constexpr std::array<const char*, 3> kFormNames = {"blocking", "nonblocking", "persistent"};

std::vector<Form> forms() {
    std::vector<Form> list = {Form::blocking, Form::nonblocking};
    if (RANKS_HAVE_MPI4) {
        list.push_back(Form::persistent);
    }
    return list;
}

#if RANKS_HAVE_MPI4
#define PERSISTENT(name, ...) MPI_##name##_init(__VA_ARGS__, MPI_INFO_NULL, request)
#else
#define PERSISTENT(name, ...) MPI_ERR_UNSUPPORTED_OPERATION
#endif
#define IN_FORM(name, nonblocking_name, ...)                              \
    (form == Form::blocking      ? MPI_##name(__VA_ARGS__)                \
     : form == Form::nonblocking ? nonblocking_name(__VA_ARGS__, request) \
                                 : PERSISTENT(name, __VA_ARGS__))

/// The arguments of one call. The contribution is `out`, or `in` where that is an operand in place.
struct Call {
    Shape shape;
    void* out;
    void* in;
    int count;
    MPI_Datatype type;
    MPI_Op op;
    int root;
    std::vector<int> shares{};  ///< of reduce_scatter; must live as long as the request

    [[nodiscard]] int make(const Run& run, Form form, MPI_Request* request) const {
        const bool is_root = run.rank == root;
        switch (shape) {
            case Shape::allreduce:
                return IN_FORM(Allreduce, MPI_Iallreduce, out, in, count, type, op, run.comm);
            case Shape::allreduce_in_place:
                return IN_FORM(Allreduce, MPI_Iallreduce, MPI_IN_PLACE, in, count, type, op, run.comm);
            case Shape::reduce_in_place:
                return IN_FORM(Reduce, MPI_Ireduce, is_root ? MPI_IN_PLACE : out, is_root ? in : nullptr, count, type,
                               op, root, run.comm);
            case Shape::reduce:
                return IN_FORM(Reduce, MPI_Ireduce, out, is_root ? in : nullptr, count, type, op, root, run.comm);
            case Shape::scan:
                return IN_FORM(Scan, MPI_Iscan, out, in, count, type, op, run.comm);
            case Shape::exscan:
                return IN_FORM(Exscan, MPI_Iexscan, out, in, count, type, op, run.comm);
            case Shape::reduce_scatter_block:
                return IN_FORM(Reduce_scatter_block, MPI_Ireduce_scatter_block, out, in, count / run.size, type, op,
                               run.comm);
            case Shape::reduce_scatter:
                return IN_FORM(Reduce_scatter, MPI_Ireduce_scatter, out, in, shares.data(), type, op, run.comm);
        }
        return MPI_ERR_INTERN;
    }
};

/// The two buffers of a family's calls on up to `elements` elements: allocated once, filled anew for each call.
class Operands {
  public:
    Operands(Run& run, const Family& family, int elements) : _run(run) {
        for (const Element& element : family.elements) {
            _bytes = std::max(_bytes, to_size(elements) * element.bytes + 2 * kSlots * element.alignment);
        }
        // What they hold is noted after each call.
        _out = _run.transient(_bytes);
        _in = _run.transient(_bytes);
    }

    /// Calls once (a persistent operation: starts it twice) and notes what both buffers hold then.
    void call(const Element& element, const Operation& operation, Shape shape, Form form, int count) {
        const int number = _calls++;
        // Both aligned alike, or each in its own way.
        const std::size_t out_at = to_size(number) % kSlots * element.alignment;
        const std::size_t in_at = to_size(number / 3) % kSlots * element.alignment;
        const std::string name = format("%s %s, %d elements, %s %s, at %zu and %zu", element.name.c_str(),
                                        operation.name.c_str(), count, kFormNames[static_cast<std::size_t>(form)],
                                        kShapeNames[static_cast<std::size_t>(shape)], out_at, in_at);
        Call call{shape, _out + out_at, _in + in_at, count, element.type, operation.op, number % _run.size};
        for (int rank = 0; rank < _run.size; ++rank) {
            call.shares.push_back(count / _run.size + (rank < count % _run.size ? 1 : 0));
        }

        fill(element, operation, count, _out, out_at, hash_text(name));
        fill(element, operation, count, _in, in_at, hash_text(name) + 1);
        MPI_Request request = MPI_REQUEST_NULL;
        _run.ok(call.make(_run, form, &request), name.c_str(), __LINE__);
        switch (form) {
            case Form::blocking:
                break;
            case Form::nonblocking:
                _run.ok(MPI_Wait(&request, MPI_STATUS_IGNORE), name.c_str(), __LINE__);
                break;
            case Form::persistent:
                for (std::uint64_t start = 1; start <= 2; ++start) {
                    fill(element, operation, count, _out, out_at, hash_text(name) + 2 * start);
                    fill(element, operation, count, _in, in_at, hash_text(name) + 2 * start + 1);
                    _run.ok(MPI_Start(&request), name.c_str(), __LINE__);
                    _run.ok(MPI_Wait(&request, MPI_STATUS_IGNORE), name.c_str(), __LINE__);
                }
                _run.ok(MPI_Request_free(&request), name.c_str(), __LINE__);
                break;
        }
        note(name + ": operand", element, count, _out, out_at);
        // MPI leaves the first rank's result of MPI_Exscan undefined.
        if (shape != Shape::exscan || _run.rank != 0) {
            note(name + ": result", element, count, _in, in_at);
        }
    }

  private:
    static constexpr std::size_t kSlots = 8;  ///< places that an operand may begin at, in units of its alignment

    [[nodiscard]] static std::size_t used_bytes(const Element& element, int count) {
        return to_size(count) * element.bytes + 2 * kSlots * element.alignment;
    }

    void fill(const Element& element, const Operation& operation, int count, std::byte* buffer, std::size_t at,
              std::uint64_t seed) {
        std::vector<std::byte> image(used_bytes(element, count));
        // What lies around the operand is noted too, and must stay.
        fill_random(image.data(), image.size(), combine(seed, to_size(_run.rank)));
        std::memset(image.data() + at, 0, to_size(count) * element.bytes);
        element.fill(image.data() + at, to_size(count), operation.content, {seed, _run.rank, _run.size});
        _run.store(buffer, image.data(), image.size());
    }

    void note(const std::string& name, const Element& element, int count, const std::byte* buffer, std::size_t at) {
        std::vector<std::byte> image = _run.load(buffer, used_bytes(element, count));
        for (std::size_t first = at; first < at + to_size(count) * element.bytes; first += element.bytes) {
            for (const std::size_t byte : element.padding) {
                image[first + byte] = std::byte{0};
            }
        }
        _run.note(name, format("%016llx", static_cast<unsigned long long>(hash_bytes(image.data(), image.size()))));
    }

    Run& _run;
    std::size_t _bytes = 0;
    std::byte* _out = nullptr;
    std::byte* _in = nullptr;
    int _calls = 0;
};

// ---- cases ----------------------------------------------------------------------------------------------------------

constexpr int kSmall = 1000, kLarge = 300000;

/// Every type with every operation, on few elements or on a thousand: reduced to all by nonblocking calls, and in one
/// shape by blocking and persistent ones.
void small_reductions(Run& run, const Family& family) {
    Operands operands(run, family, kSmall);
    std::size_t turn = 0;
    for (const Element& element : family.elements) {
        for (const Operation& operation : element.operations) {
            const Shape shape = kShapes[turn % kShapes.size()];
            const Shape other = turn % 2 == 0 ? Shape::allreduce : Shape::allreduce_in_place;
            const int few = 1 + static_cast<int>(turn % 3);
            operands.call(element, operation, shape, Form::blocking, turn % 2 == 0 ? kSmall : few);
            operands.call(element, operation, other, Form::nonblocking, kSmall - few);
            operands.call(element, operation, shape, forms().back(), turn % 2 == 0 ? few : kSmall);
            // Eight shapes and lists of ten, seven, four and two operations: shapes and operations do not go in step.
            turn += 3;
        }
        ++turn;
    }
}

/// The types that most programs reduce, in every kind of memory.
void kinds_of_memory(Run& run) {
    const Operation sum = arithmetic().front();
    const Family family{"common",
                        {element<double>("double", MPI_DOUBLE, {{sum}}), element<float>("float", MPI_FLOAT, {{sum}}),
                         element<int>("int", MPI_INT, {{sum}}), element<std::uint8_t>("uint8", MPI_UINT8_T, {{sum}})},
                        false};
    Operands operands(run, family, kSmall);
    for (const Element& element : family.elements) {
        operands.call(element, sum, Shape::allreduce, Form::blocking, kSmall);
        for (const Shape shape : {Shape::allreduce_in_place, Shape::reduce_in_place, Shape::reduce_scatter_block}) {
            operands.call(element, sum, shape, Form::nonblocking, kSmall);
        }
    }
}

void large_reductions(Run& run, const Family& family) {
    Operands operands(run, family, kLarge);
    std::size_t turn = 0;
    for (const Element& element : family.elements) {
        for (const Operation& operation : element.operations) {
            const bool common = operation.op == MPI_SUM && element.type == MPI_DOUBLE;
            for (const Shape shape : {Shape::allreduce, Shape::allreduce_in_place, Shape::reduce_in_place}) {
                if (common) {
                    operands.call(element, operation, shape, Form::blocking, kLarge);
                }
            }
            operands.call(element, operation, kShapes[turn++ % kShapes.size()], Form::nonblocking, kLarge);
        }
    }
}

void all_reductions(Run& run, const Family& family) {
    for (const int count : {1, kSmall - 1, kLarge + 1}) {
        Operands operands(run, family, count);
        for (const Element& element : family.elements) {
            for (const Operation& operation : element.operations) {
                for (const Shape shape : kShapes) {
                    if (count > kLarge && shape > Shape::reduce_in_place) {
                        break;
                    }
                    for (const Form form : forms()) {
                        operands.call(element, operation, shape, form, count);
                    }
                }
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    // A type that the MPI lacks is to be an answer.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int status = 0;
    {
        const UserOperations user;
        std::vector<Family> all = families();
        all.push_back(of_other_languages());
        all.push_back(user.family());
        for (const Family& family : all) {
            suite.add("small_" + family.name, [family](Run& run) { small_reductions(run, family); }, 1, Weight::heavy);
            if (family.large) {
                suite.add(
                    "large_" + family.name, [family](Run& run) { large_reductions(run, family); }, 1, Weight::heavy);
            }
            suite.add(
                "every_form_" + family.name, [family](Run& run) { all_reductions(run, family); }, 1, Weight::longer);
        }
        suite.add("kinds_of_memory", kinds_of_memory, 1);
        status = suite.run();
    }
    MPI_Finalize();
    return status;
}
