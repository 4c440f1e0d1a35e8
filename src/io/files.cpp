// SPDX-License-Identifier: Apache-2.0
// MPI-IO on device memory: the MPI reads into and writes from a staging buffer in host memory.
//
// A file gets the datatype's bytes one after another. A packed staging buffer has the same signature, so views, etypes
// and counts stay what the program expects. After a read, the layer copies back as many bytes as the status says: a
// read past the end of the file delivers fewer than the program asked for.

#include "call/call.h"
#include "call/object_life.h"
#include "call/requests.h"
#include "call/services.h"
#include "call/stage.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// The functions with and without an offset; `last` is a status or a request. `Operation::access()` gets the MPI's
/// function in a form that takes a staging buffer and the last argument.
template <class Operation>
struct WithAndWithoutOffset {
    template <Function function, class Count, class Last>
    static int run(Call& call, MPI_File file, const void* buffer, Count count, MPI_Datatype type, Last last) {
        call.on_file(file);
        return Operation::access(call, buffer, count, type, last, [&](const Argument<Count>& staged, Last own) {
            return below<function>()(file, staged.address, staged.count, staged.type, own);
        });
    }
    template <Function function, class Count, class Last>
    static int run(Call& call, MPI_File file, MPI_Offset offset, const void* buffer, Count count, MPI_Datatype type,
                   Last last) {
        call.on_file(file);
        return Operation::access(call, buffer, count, type, last, [&](const Argument<Count>& staged, Last own) {
            return below<function>()(file, offset, staged.address, staged.count, staged.type, own);
        });
    }
};

/// Loads what is written. Whatever fails, the MPI's part is done, since other ranks may take part in the access. The
/// MPI writes nothing then, and storing the data tells the failure.
template <class Count>
Argument<Count> loaded(Stage& stage, const Argument<Count>& staged) {
    stage.load(Stage::Failure::kept);
    return {staged.address, stage.failure() ? Count{0} : staged.count, staged.type};
}

template <Access direction>
struct Blocking : WithAndWithoutOffset<Blocking<direction>> {
    template <class Count, class Native>
    static int access(Call& call, const void* buffer, Count count, MPI_Datatype type, MPI_Status* status,
                      const Native& native) {
        Stage stage(call);
        const Argument<Count> staged = loaded(stage, stage.buffer(direction, buffer, count, type));
        if (!stage.active()) {
            return native(staged, status);
        }
        MPI_Status own{};
        const int error = native(staged, &own);
        if (error == MPI_SUCCESS) {
            stage.store(transferred_bytes(own));
        }
        return_status(status, own);
        return error;
    }
};

template <Access direction>
struct Nonblocking : WithAndWithoutOffset<Nonblocking<direction>> {
    template <class Count, class Native>
    static int access(Call& call, const void* buffer, Count count, MPI_Datatype type, MPI_Request* request,
                      const Native& native) {
        Stage stage(call);
        const Argument<Count> staged = loaded(stage, stage.buffer(direction, buffer, count, type));
        const int error = native(staged, request);
        if (error != MPI_SUCCESS || !stage.active()) {
            return error;
        }
        // Nobody asks whether it is over: see Requests::is_over_at_once(). The status says how much was read, so each
        // access has a request of its own.
        auto operation = make_operation(Operation::Kind::once, std::move(stage));
        operation->handle = operation->native_request = *request;
        operation->reads = direction == Access::out;
        layer().requests.track(std::move(operation));
        return error;
    }
};

/// The first half of a split collective access. The layer keeps the staging buffer until `second`, the second half.
template <Access direction, Function second>
struct Begin {
    template <Function function, class Count>
    static int run(Call& call, MPI_File file, const void* buffer, Count count, MPI_Datatype type) {
        return begin(call, file, buffer, count, type, [&](const Argument<Count>& staged) {
            return below<function>()(file, staged.address, staged.count, staged.type);
        });
    }
    template <Function function, class Count>
    static int run(Call& call, MPI_File file, MPI_Offset offset, const void* buffer, Count count, MPI_Datatype type) {
        return begin(call, file, buffer, count, type, [&](const Argument<Count>& staged) {
            return below<function>()(file, offset, staged.address, staged.count, staged.type);
        });
    }

  private:
    template <class Count, class Native>
    static int begin(Call& call, MPI_File file, const void* buffer, Count count, MPI_Datatype type,
                     const Native& native) {
        call.on_file(file);
        Stage stage(call);
        const Argument<Count> staged = loaded(stage, stage.buffer(direction, buffer, count, type));
        const int error = native(staged);
        if (error == MPI_SUCCESS && stage.active()) {
            layer().split_accesses.keep(
                file, {std::move(stage), staged.address,
                       [](MPI_File of, void* at, MPI_Status* status) { return below<second>()(of, at, status); }});
        }
        return error;
    }
};
using BeginReadAll = Begin<Access::out, Function::File_read_all_end>;
using BeginReadAtAll = Begin<Access::out, Function::File_read_at_all_end>;
using BeginReadOrdered = Begin<Access::out, Function::File_read_ordered_end>;
using BeginWriteAll = Begin<Access::in, Function::File_write_all_end>;
using BeginWriteAtAll = Begin<Access::in, Function::File_write_at_all_end>;
using BeginWriteOrdered = Begin<Access::in, Function::File_write_ordered_end>;

/// Ends an access by `native`, the MPI's function, and stores the data that was read. When the MPI does not end the
/// access, for example because the program called the second half of another one, the staging buffer stays: the MPI may
/// still use it, and the right second half must still deliver it.
template <class Native>
int end_access(const Native& native, const std::shared_ptr<SplitAccess>& access, const MPI_File file,
               MPI_Status* const status) {
    MPI_Status own{};
    access->refused = true;  // also when the program's error handler throws
    const int error = native(file, access->address, &own);
    if (error == MPI_SUCCESS) {
        layer().split_accesses.drop(file);
        access->stage.store(transferred_bytes(own));
    }
    return_status(status, own);
    return error;
}

/// The second half.
struct End {
    template <Function function, class Buffer>
    static int run(Call& call, MPI_File file, Buffer* buffer, MPI_Status* status) {
        call.on_file(file);
        const std::shared_ptr<SplitAccess> access = layer().split_accesses.find(file);
        if (access == nullptr) {
            return below<function>()(file, buffer, status);
        }
        return end_access(below<function>(), access, file, status);
    }
};

/// MPI_File_close(file). A program that has not ended its split access is wrong, but MPIs accept it. The layer ends the
/// access here. It cannot free the staging buffer while the MPI may use it, nor keep it for the next file with the same
/// handle. It leaves an access that the MPI has refused to end to the MPI.
struct Close {
    template <Function function>
    static int run(Call& call, MPI_File* file) {
        SplitAccesses& accesses = layer().split_accesses;
        const std::shared_ptr<SplitAccess> access = file != nullptr ? accesses.find(*file) : nullptr;
        if (access == nullptr) {
            return below<function>()(file);
        }
        call.on_file(*file);
        int first = MPI_SUCCESS;
        if (!access->refused) {
            try {
                first = end_access(access->end, access, *file, MPI_STATUS_IGNORE);
            } catch (const Error& error) {
                first = call.fail(MPI_ERR_OTHER, error);  // now, while the file exists
            }
        }
        accesses.drop(*file);  // `access` lives until the file is closed
        const int error = below<function>()(file);
        return first == MPI_SUCCESS ? error : first;
    }
};

}  // namespace

Services file_services() {
    return {
        AWAKEN_SERVE_COUNTS(File_read, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_at, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_all, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_at_all, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_shared, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_ordered, Blocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_iread, Nonblocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_iread_at, Nonblocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_iread_all, Nonblocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_iread_at_all, Nonblocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_iread_shared, Nonblocking<Access::out>),
        AWAKEN_SERVE_COUNTS(File_read_all_begin, BeginReadAll),
        AWAKEN_SERVE(File_read_all_end, End),
        AWAKEN_SERVE_COUNTS(File_read_at_all_begin, BeginReadAtAll),
        AWAKEN_SERVE(File_read_at_all_end, End),
        AWAKEN_SERVE_COUNTS(File_read_ordered_begin, BeginReadOrdered),
        AWAKEN_SERVE(File_read_ordered_end, End),
        AWAKEN_SERVE_COUNTS(File_write, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_at, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_all, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_at_all, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_shared, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_ordered, Blocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_iwrite, Nonblocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_iwrite_at, Nonblocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_iwrite_all, Nonblocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_iwrite_at_all, Nonblocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_iwrite_shared, Nonblocking<Access::in>),
        AWAKEN_SERVE_COUNTS(File_write_all_begin, BeginWriteAll),
        AWAKEN_SERVE(File_write_all_end, End),
        AWAKEN_SERVE_COUNTS(File_write_at_all_begin, BeginWriteAtAll),
        AWAKEN_SERVE(File_write_at_all_end, End),
        AWAKEN_SERVE_COUNTS(File_write_ordered_begin, BeginWriteOrdered),
        AWAKEN_SERVE(File_write_ordered_end, End),
        AWAKEN_SERVE(File_close, FreeObject<Close, NamedObject::Type::file>),
    };
}

}  // namespace awaken::AWAKEN_ABI
