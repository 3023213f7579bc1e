#pragma once

/// The formats of weights that store elements in blocks: FORMAT(Name) for each. formats::Name is the format,
/// DType::kName its dtype. Read by kernels, too, so it includes nothing.
#define TESSERA_BLOCK_FORMATS(FORMAT) FORMAT(Q8_0)
