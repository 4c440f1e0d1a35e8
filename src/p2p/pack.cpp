// MPI_Pack and its relatives on device memory: typed and packed side may each be on a device.

#include "call/call.h"
#include "call/stage.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// MPI_Pack(in, count, type, out, out_size, position, comm).
struct Pack {
    template <Function function, class Count, class Size>
    static int run(Call& call, const void* input, Count count, MPI_Datatype type, void* output, Size output_size,
                   Size* position, MPI_Comm comm) {
        call.on(comm);
        Stage stage(call);
        const Argument<Count> typed = stage.buffer(Access::in, input, count, type);
        // Only part of the packed buffer is written: the rest must come back as it was.
        const Argument<Size> packed = stage.buffer(Access::inout, output, output_size, MPI_PACKED);
        stage.load();
        const int error =
            below<function>()(typed.address, typed.count, typed.type, packed.address, packed.count, position, comm);
        if (error == MPI_SUCCESS) {
            stage.store();
        }
        return error;
    }
};

/// MPI_Unpack(in, in_size, position, out, count, type, comm).
struct Unpack {
    template <Function function, class Count, class Size>
    static int run(Call& call, const void* input, Size input_size, Size* position, void* output, Count count,
                   MPI_Datatype type, MPI_Comm comm) {
        call.on(comm);
        Stage stage(call);
        const Argument<Size> packed = stage.buffer(Access::in, input, input_size, MPI_PACKED);
        const Argument<Count> typed = stage.buffer(Access::out, output, count, type);
        stage.load();
        const int error =
            below<function>()(packed.address, packed.count, position, typed.address, typed.count, typed.type, comm);
        if (error == MPI_SUCCESS) {
            stage.store();
        }
        return error;
    }
};

/// MPI_Pack_external(datarep, in, count, type, out, out_size, position): sizes are MPI_Aint in the small form.
struct PackExternal {
    template <Function function, class Count, class Size>
    static int run(Call& call, const char* representation, const void* input, Count count, MPI_Datatype type,
                   void* output, Size output_size, Size* position) {
        Stage stage(call);
        const Argument<Count> typed = stage.buffer(Access::in, input, count, type);
        const Argument<Size> packed = stage.buffer(Access::inout, output, output_size, MPI_PACKED);
        stage.load();
        const int error = below<function>()(representation, typed.address, typed.count, typed.type, packed.address,
                                            packed.count, position);
        if (error == MPI_SUCCESS) {
            stage.store();
        }
        return error;
    }
};

struct UnpackExternal {
    template <Function function, class Count, class Size>
    static int run(Call& call, const char* representation, const void* input, Size input_size, Size* position,
                   void* output, Count count, MPI_Datatype type) {
        Stage stage(call);
        const Argument<Size> packed = stage.buffer(Access::in, input, input_size, MPI_PACKED);
        const Argument<Count> typed = stage.buffer(Access::out, output, count, type);
        stage.load();
        const int error = below<function>()(representation, packed.address, packed.count, position, typed.address,
                                            typed.count, typed.type);
        if (error == MPI_SUCCESS) {
            stage.store();
        }
        return error;
    }
};

}  // namespace

Services pack_services() {
    return {
        AWAKEN_SERVE(Pack, Pack),
        AWAKEN_SERVE(Pack_c, Pack),
        AWAKEN_SERVE(Unpack, Unpack),
        AWAKEN_SERVE(Unpack_c, Unpack),
        AWAKEN_SERVE(Pack_external, PackExternal),
        AWAKEN_SERVE(Pack_external_c, PackExternal),
        AWAKEN_SERVE(Unpack_external, UnpackExternal),
        AWAKEN_SERVE(Unpack_external_c, UnpackExternal),
    };
}

}  // namespace awaken::AWAKEN_ABI
